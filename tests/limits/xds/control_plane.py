"""A control plane for the tests: xds-protos and grpcio, without code of the service.

    control_plane.py ADDRESS [CERTIFICATE KEY [CLIENT_CA]]

Reads commands as JSON lines from standard input, and writes events as JSON lines:

    {"set": {"version": "1", "resources": [...]}}  publishes this on every stream
    {"hang_up": true}                              ends every stream

A resource is {"config": {...}} in protobuf's JSON, {"type_url": ..., "hex": ...} for raw bytes, or {"many": N, "width": W} for N
descriptors with values of W digits.
"""

import json
import queue
import sys
import threading
from concurrent import futures

import grpc
from envoy.config.core.v3 import base_pb2  # noqa: F401: the discovery messages use its types
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, json_format, message_factory, struct_pb2

PACKAGE = "ratelimit.config.ratelimit.v3"
TYPE_URL = f"type.googleapis.com/{PACKAGE}.RateLimitConfig"


def config_class():
    """The message of one domain's rules, which xds-protos does not have."""
    field = descriptor_pb2.FieldDescriptorProto
    scalar = {"string": field.TYPE_STRING, "bool": field.TYPE_BOOL, "uint32": field.TYPE_UINT32}
    messages = {
        "RateLimitConfig": ["name string", "domain string", "descriptors *RateLimitDescriptor"],
        "RateLimitDescriptor": [
            "key string", "value string", "rate_limit RateLimitPolicy", "descriptors *RateLimitDescriptor",
            "shadow_mode bool", "detailed_metric bool", "quota_mode bool", "metadata google.protobuf.Struct",
        ],
        "RateLimitPolicy": [
            "unit RateLimitUnit", "requests_per_unit uint32", "unlimited bool", "name string",
            "replaces *RateLimitReplace",
        ],
        "RateLimitReplace": ["name string"],
    }
    units = {"UNKNOWN": 0, "SECOND": 1, "MINUTE": 2, "HOUR": 3, "DAY": 4, "MONTH": 5, "YEAR": 6, "WEEK": 7}
    file = descriptor_pb2.FileDescriptorProto(name="rls_conf.proto", package=PACKAGE, syntax="proto3")
    file.dependency.append(struct_pb2.DESCRIPTOR.name)
    enum = file.enum_type.add(name="RateLimitUnit")
    for unit, number in units.items():
        enum.value.add(name=unit, number=number)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, (key, kind) in enumerate((text.split() for text in fields), 1):
            repeated = kind.startswith("*")
            kind = kind.lstrip("*")
            added = message.field.add(name=key, number=number)
            added.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind in scalar:
                added.type = scalar[kind]
            else:
                added.type = field.TYPE_ENUM if kind == "RateLimitUnit" else field.TYPE_MESSAGE
                added.type_name = f".{kind}" if "." in kind else f".{PACKAGE}.{kind}"
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.RateLimitConfig"))


RateLimitConfig = config_class()


def packed(resource):
    if "hex" in resource:
        return any_pb2.Any(type_url=resource.get("type_url", TYPE_URL), value=bytes.fromhex(resource["hex"]))
    config = json_format.ParseDict(resource["config"], RateLimitConfig())
    for number in range(resource.get("many", 0)):
        descriptor = config.descriptors.add(key="k", value=f"{number:0{resource['width']}}")
        descriptor.rate_limit.unit = 4
        descriptor.rate_limit.requests_per_unit = number
    return any_pb2.Any(type_url=TYPE_URL, value=config.SerializeToString(deterministic=True))


def report(**event):
    print(json.dumps(event), flush=True)


class Streams:
    """The published resources, and the open streams."""

    def __init__(self):
        self.lock = threading.Lock()
        self.published = None
        self.listeners = set()
        self.nonces = 0

    def listen(self):
        listener = queue.Queue()
        with self.lock:
            self.listeners.add(listener)
        return listener

    def leave(self, listener):
        with self.lock:
            self.listeners.discard(listener)

    def send(self, what):
        with self.lock:
            for listener in self.listeners:
                listener.put(what)

    def nonce(self):
        with self.lock:
            self.nonces += 1
            return f"n{self.nonces}"


class ControlPlane(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    def __init__(self, streams):
        self.streams = streams

    def StreamAggregatedResources(self, requests, context):
        metadata = {key: value if isinstance(value, str) else value.hex() for key, value in context.invocation_metadata()}
        report(stream="sotw", headers=metadata, authenticated=sorted(context.auth_context()))
        listener = self.streams.listen()

        def read():
            try:
                for request in requests:
                    report(request=json_format.MessageToDict(request, preserving_proto_field_name=True))
                    if not request.response_nonce:
                        listener.put("begin")
            except grpc.RpcError:
                pass
            listener.put("end")

        threading.Thread(target=read, daemon=True).start()
        begun = False
        try:
            while True:
                what = listener.get()
                if what == "end":
                    return
                begun = begun or what == "begin"
                if begun and self.streams.published is not None:
                    yield self.everything()
        finally:
            self.streams.leave(listener)
            report(ended="sotw")

    def everything(self):
        published = self.streams.published
        return discovery_pb2.DiscoveryResponse(
            version_info=published["version"], type_url=published.get("type_url", TYPE_URL), nonce=self.streams.nonce(),
            resources=[packed(resource) for resource in published["resources"]],
        )


def main():
    address, *files = sys.argv[1:]
    streams = Streams()
    # Each stream uses a thread.
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
    ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(ControlPlane(streams), server)
    if files:
        certificate, key, *client_ca = (open(path, "rb").read() for path in files)
        roots = client_ca[0] if client_ca else None
        credentials = grpc.ssl_server_credentials([(key, certificate)], roots, require_client_auth=bool(roots))
        server.add_secure_port(address, credentials)
    else:
        server.add_insecure_port(address)
    server.start()
    report(listening=address)
    for line in sys.stdin:
        command = json.loads(line)
        if "set" in command:
            streams.published = command["set"]
            streams.send("published")
        if "hang_up" in command:
            streams.send("end")
    server.stop(0)


main()
