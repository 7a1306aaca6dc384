#!/usr/bin/env python3
"""Writes schedules.csv, the ranges of local time that the tests of this crate expect, with Python's zoneinfo and the
release of the zone data that the crate bundles (2026f is version 2026.6 of the package):

    pip install tzdata==2026.6
    PYTHONTZPATH= python3 crates/limits/limit/src/calendar/tests/schedules.py > crates/limits/limit/src/calendar/tests/schedules.csv

The range of a day is searched minute by minute: from the first to the last one at which the clock shows a time within it.
The crate computes both from the offsets instead.
"""

import datetime as dt
import zoneinfo

import tzdata

RANGES = [("00:00", "24:00"), ("08:00", "20:00"), ("22:00", "06:00"), ("00:30", "02:00"), ("02:00", "02:30"),
          ("02:15", "02:45"), ("01:30", "03:00"), ("23:30", "00:30"), ("12:00", "12:00"), ("23:00", "24:00")]

# Days around what is odd in the zone, as in windows.py.
ZONES = {
    "Europe/Berlin": ["2026-03-28", "2026-03-29", "2026-10-24", "2026-10-25"],
    "America/New_York": ["2026-03-07", "2026-03-08", "2026-10-31", "2026-11-01"],
    "Africa/Cairo": ["2024-04-25", "2024-04-26", "2024-10-31", "2024-11-01"],
    "America/Havana": ["2024-03-09", "2024-03-10", "2024-11-02", "2024-11-03"],
    "Australia/Lord_Howe": ["2026-04-04", "2026-04-05", "2026-10-03", "2026-10-04"],
    "Pacific/Apia": ["2011-12-28", "2011-12-29", "2011-12-30", "2011-12-31"],
    "America/St_Johns": ["2009-03-07", "2009-03-08", "2009-10-31", "2009-11-01"],
}
MINUTE, DAY = dt.timedelta(minutes=1), dt.timedelta(days=1)


def minutes(text):
    hours, rest = text.split(":")
    return int(hours) * 60 + int(rest)


def clocks(zone, day):
    """Each minute around a day, with the date and the minute of the day that the clock shows."""
    instant = dt.datetime.combine(day, dt.time(), dt.timezone.utc) - 2 * DAY
    for _ in range(6 * 1440):
        local = instant.astimezone(zone)
        yield instant, local.date(), local.hour * 60 + local.minute
        instant += MINUTE


def main():
    assert not zoneinfo.TZPATH, "set PYTHONTZPATH to nothing, or zoneinfo reads the system's data"
    print(f"# Written by schedules.py: ranges by Python's zoneinfo with {tzdata.IANA_VERSION}, in seconds since 1970.")
    print("# zone,day,from,to,begin,end")
    for zone, days in ZONES.items():
        for day in map(dt.date.fromisoformat, days):
            shown = list(clocks(zoneinfo.ZoneInfo(zone), day))
            for begin, end in RANGES:
                first, last = minutes(begin), minutes(end)
                if last <= first:
                    within = [at for at, date, minute in shown
                              if date == day and minute >= first or date == day + DAY and minute < last]
                else:
                    within = [at for at, date, minute in shown if date == day and first <= minute < last]
                found = f"{within[0].timestamp():.0f},{within[-1].timestamp() + 60:.0f}" if within else ","
                print(f"{zone},{day},{begin},{end},{found}")


main()
