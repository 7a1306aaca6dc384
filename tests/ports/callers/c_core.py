"""Calls ShouldRateLimit with gRPC's C core and prints the overall code of the answer.

    c_core.py TARGET DOMAIN KEY VALUE

TARGET is a gRPC name such as `unix:/path` or `127.0.0.1:8081`.
"""

import sys

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc


def main():
    target, domain, key, value = sys.argv[1:]
    entry = ratelimit_pb2.RateLimitDescriptor.Entry(key=key, value=value)
    descriptor = ratelimit_pb2.RateLimitDescriptor(entries=[entry])
    request = rls_pb2.RateLimitRequest(domain=domain, descriptors=[descriptor])
    with grpc.insecure_channel(target) as channel:
        answer = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit(request, timeout=20)
    print(rls_pb2.RateLimitResponse.Code.Name(answer.overall_code))


main()
