"""compare.py COLLECTOR TOLLGATE: the series of the service's page that the collector's page does not have."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

COLLECTOR, TOLLGATE = sys.argv[1:]

CONFIG = """
receivers: {{otlp: {{protocols: {{grpc: {{endpoint: '127.0.0.1:{grpc}'}}, http: {{endpoint: '127.0.0.1:{http}'}}}}}}}}
exporters: {{prometheus: {{endpoint: '127.0.0.1:{page}', translation_strategy: UnderscoreEscapingWithoutSuffixes}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{metrics: {{receivers: [otlp], exporters: [prometheus]}}}}
"""

RULES = "domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 2}\n"
REQUEST = b'{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}'

# They go on while nobody asks.
MOVING = re.compile("process_|tollgate_otlp_points|tollgate_memory|tollgate_store")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        return page.read().decode()


def series(page):
    found = {}
    for line in page.splitlines():
        sample = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if not sample or line.startswith("#"):
            continue
        labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', sample[2] or "")
        # The collector writes 1e-05, and adds what it knows of the sender.
        labels = [(name, repr(float(value)) if name == "le" else value) for name, value in labels]
        own = [label for label in labels if not label[0].startswith("otel_scope") and label[0] not in ("job", "instance")]
        found[sample[1], tuple(sorted(own))] = float(sample[3])
    return found


def eventually(what, attempt):
    until = time.time() + 20
    while time.time() < until:
        try:
            return attempt()
        except (OSError, AssertionError) as error:
            last = error
        time.sleep(0.2)
    sys.exit(f"{what}: {last}")


def compare(protocol, port, compression, page, temporary):
    ports = {name: free_port() for name in ("PORT", "GRPC_PORT", "DEBUG_PORT")}
    metrics = free_port()
    environment = {
        **os.environ,
        **{name: str(port) for name, port in ports.items()},
        "PROMETHEUS_ADDR": f"127.0.0.1:{metrics}",
        "ADMIN_ADDR": "off",
        "RUNTIME_ROOT": temporary,
        "RUNTIME_WATCH_ROOT": "false",
        "BACKEND_TYPE": "memory",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": compression,
        "OTEL_METRIC_EXPORT_INTERVAL": "300",
    }
    service = subprocess.Popen([TOLLGATE], env=environment, stderr=subprocess.DEVNULL)
    try:
        ask = urllib.request.Request(f"http://127.0.0.1:{ports['PORT']}/json", data=REQUEST)
        eventually("the service answers", lambda: urllib.request.urlopen(ask).read())

        def same():
            own, theirs = series(get(metrics)), series(get(page))
            assert own, "the service has no series"
            differ = [key for key, value in own.items() if not MOVING.match(key[0]) and theirs.get(key) != value]
            missing = [key for key in own if key not in theirs]
            assert not differ and not missing, f"{missing[:3]} missing, {differ[:3]} differ"
            return len(own)

        print(f"{protocol}, {compression}: {eventually('the pages are equal', same)} series")
    finally:
        service.terminate()
        service.wait()


def main():
    with tempfile.TemporaryDirectory() as temporary:
        os.mkdir(f"{temporary}/config")
        with open(f"{temporary}/config/d.yaml", "w") as rules:
            rules.write(RULES)
        for protocol, compression in (("grpc", "none"), ("grpc", "gzip"), ("http/protobuf", "none"), ("http/protobuf", "gzip")):
            ports = {name: free_port() for name in ("grpc", "http", "page")}
            with open(f"{temporary}/collector.yaml", "w") as config:
                config.write(CONFIG.format(**ports))
            collector = subprocess.Popen(
                [COLLECTOR, "--config", f"file:{temporary}/collector.yaml"], stderr=subprocess.DEVNULL
            )
            try:
                eventually("the collector listens", lambda: get(ports["page"]))
                port = ports["grpc" if protocol == "grpc" else "http"]
                compare(protocol, port, compression, ports["page"], temporary)
            finally:
                collector.terminate()
                collector.wait()


main()
