"""Writes a million requests to a file, and prints what two limits with fixed windows do to them: 20 a minute and, to
compare with, 300 an hour for each user. Shares nothing with the program."""

import collections
import datetime
import json
import random
import sys

random.seed(26)
minute, hour = collections.Counter(), collections.Counter()
refused = newly_refused = newly_allowed = 0
by_user = collections.Counter()
time = datetime.datetime(2026, 10, 31, 23, 30, tzinfo=datetime.timezone.utc).timestamp()
with open(sys.argv[1], "w") as log:
    for _ in range(1_000_000):
        time += random.expovariate(150)
        # Milliseconds, as they are written.
        milliseconds = int(time * 1000)
        second = milliseconds // 1000
        text = datetime.datetime.fromtimestamp(second, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
        user = f"u{int(random.paretovariate(0.6)) % 50_000}"
        log.write(
            f'{{"time":"{text}.{milliseconds % 1000:03d}Z","domain":"shop","descriptors":'
            f'[{{"entries":[{{"key":"user","value":"{user}"}}],"hits":1}}]}}\n'
        )
        minute[user, second // 60] += 1
        hour[user, second // 3600] += 1
        is_refused = minute[user, second // 60] > 20
        was_refused = hour[user, second // 3600] > 300
        refused += is_refused
        newly_refused += is_refused and not was_refused
        newly_allowed += was_refused and not is_refused
        by_user[user] += is_refused and not was_refused
top = min(by_user, key=lambda user: (-by_user[user], f"user={user}"))
print(
    json.dumps(
        {
            "requests": 1_000_000,
            "refused": refused,
            "newly_refused": newly_refused,
            "newly_allowed": newly_allowed,
            "top": [f"user={top}", by_user[top]],
            "most": max(minute.values()),
        }
    )
)
