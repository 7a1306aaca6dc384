"""Calls ShouldRateLimit with the `h2` package, once for each :authority, and prints the gRPC status of each.

    authorities.py ADDRESS FRAMED_REQUEST_IN_HEX

ADDRESS is host:port or the path of a unix socket. Standard input is a JSON list of authorities; `null` sends none. The
request ends with a separate frame. Standard output is a JSON list of statuses, or of what was received instead.
"""

import json
import socket
import sys

import h2.config
import h2.connection
import h2.events

PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


def connect(address):
    if address.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        return connection
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)))


def call(address, authority, request):
    """The grpc-status of one call on a new connection."""
    with connect(address) as wire:
        wire.settimeout(20)
        # With validation, the package would not send most of these.
        config = h2.config.H2Configuration(
            header_encoding="utf-8", validate_outbound_headers=False, normalize_outbound_headers=False
        )
        http2 = h2.connection.H2Connection(config)
        http2.initiate_connection()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", PATH)]
        headers += [] if authority is None else [(":authority", authority)]
        headers += [("content-type", "application/grpc"), ("te", "trailers")]
        stream = http2.get_next_available_stream_id()
        http2.send_headers(stream, headers)
        http2.send_data(stream, request)
        http2.end_stream(stream)
        status = None
        while True:
            wire.sendall(http2.data_to_send())
            data = wire.recv(65536)
            if not data:
                return "connection closed"
            for event in http2.receive_data(data):
                if isinstance(event, (h2.events.TrailersReceived, h2.events.ResponseReceived)):
                    status = dict(event.headers).get("grpc-status", status)
                elif isinstance(event, h2.events.StreamEnded):
                    return status
                elif isinstance(event, h2.events.StreamReset):
                    return f"stream reset, error {event.error_code}"
                elif isinstance(event, h2.events.ConnectionTerminated):
                    return f"GOAWAY, error {event.error_code}"


def main():
    address, request = sys.argv[1], bytes.fromhex(sys.argv[2])
    json.dump([call(address, authority, request) for authority in json.load(sys.stdin)], sys.stdout)


main()
