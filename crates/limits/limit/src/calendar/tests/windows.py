#!/usr/bin/env python3
"""Writes windows.csv, the windows that the tests of this crate expect, with Python's zoneinfo and the release of the zone
data that the crate bundles (2026f is version 2026.6 of the package):

    pip install tzdata==2026.6
    PYTHONTZPATH= python3 crates/limits/limit/src/calendar/tests/windows.py > crates/limits/limit/src/calendar/tests/windows.csv

A boundary is searched minute by minute, as the first instant whose local time is not before the midnight. The crate
computes it from the midnight's offset instead.
"""

import datetime as dt
import functools
import zoneinfo

import tzdata

WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
KINDS = ["day", "week monday", "week saturday", "month 1", "month 15", "month 31", "year"]

# Leap days and ends of years, then moments around what is odd in the zone, as local times before and after it.
COMMON = ["2027-01-01 00:00:00", "2026-12-31 23:59:59", "2028-02-29 00:00:00", "2028-02-29 23:59:59",
          "2028-03-01 00:00:00", "2027-02-28 23:59:59", "2026-11-15 00:00:00"]
ZONES = {
    # Days of 23 and 25 hours; the clock changes at 2:00 and 3:00.
    "Europe/Berlin": ["2026-03-29 01:59:59", "2026-03-29 03:00:00", "2026-03-30 00:00:00", "2026-03-31 12:00:00",
                      "2026-10-25 00:00:00", "2026-10-25 02:30:00", "2026-10-25 02:30:00 second",
                      "2026-10-26 00:00:00", "2026-10-31 23:59:59"],
    "America/New_York": ["2026-03-08 00:00:00", "2026-03-08 01:59:59", "2026-03-08 03:00:00", "2026-03-09 00:00:00",
                         "2026-11-01 00:00:00", "2026-11-01 01:30:00", "2026-11-01 01:30:00 second",
                         "2026-11-01 23:59:59", "2026-11-02 00:00:00"],
    # On a Friday in April midnight does not exist; on a Friday in October 23:00 to 24:00 comes twice.
    "Africa/Cairo": ["2024-04-25 23:59:59", "2024-04-26 01:00:00", "2024-04-26 12:00:00", "2024-04-27 00:00:00",
                     "2024-10-31 22:59:59", "2024-10-31 23:30:00", "2024-10-31 23:30:00 second",
                     "2024-11-01 00:00:00", "2023-10-31 12:00:00"],
    # On a Sunday in March midnight does not exist; on a Sunday in November it comes twice.
    "America/Havana": ["2024-03-09 23:59:59", "2024-03-10 01:00:00", "2024-03-10 23:59:59", "2024-03-11 00:00:00",
                       "2024-11-02 23:59:59", "2024-11-03 00:00:00", "2024-11-03 00:30:00",
                       "2024-11-03 00:30:00 second", "2024-11-04 00:00:00"],
    # Half an hour of daylight saving time.
    "Australia/Lord_Howe": ["2026-04-05 00:00:00", "2026-04-05 01:45:00", "2026-04-05 01:45:00 second",
                            "2026-04-05 23:59:59", "2026-04-06 00:00:00", "2026-10-04 01:59:59",
                            "2026-10-04 02:30:00", "2026-10-04 23:59:59", "2026-10-05 00:00:00"],
    # 2011-12-30 does not exist.
    "Pacific/Apia": ["2011-12-28 12:00:00", "2011-12-29 00:00:00", "2011-12-29 23:59:59", "2011-12-31 00:00:00",
                     "2011-12-31 12:00:00", "2011-12-31 23:59:59", "2012-01-01 00:00:00", "2012-01-15 00:00:00",
                     "2012-01-31 00:00:00"],
    # The clock was set back from 0:01 to 23:01 of the day before.
    "America/St_Johns": ["2009-10-31 23:00:00", "2009-10-31 23:30:00", "2009-11-01 00:00:30",
                         "2009-10-31 23:30:00 second", "2009-10-31 23:59:59 second",
                         "2009-11-01 00:00:30 second", "2009-11-01 12:00:00", "2009-03-08 00:00:59",
                         "2009-03-08 01:01:00"],
}
UTC = dt.timezone.utc


@functools.cache
def boundary(zone, day):
    """The first instant whose local time is at midnight of a day or later."""
    midnight = dt.datetime.combine(day, dt.time())
    instant = midnight.replace(tzinfo=UTC) - dt.timedelta(hours=27)
    while instant.astimezone(zoneinfo.ZoneInfo(zone)).replace(tzinfo=None) < midnight:
        instant += dt.timedelta(minutes=1)
    return instant


def begins(kind, day):
    """True if a window begins on this day."""
    name, _, start = kind.partition(" ")
    if name == "day":
        return True
    if name == "week":
        return WEEKDAYS[day.weekday()] == start
    if name == "month":
        last = (day.replace(day=28) + dt.timedelta(days=4)).replace(day=1) - dt.timedelta(days=1)
        return day.day == min(int(start), last.day)
    return (day.month, day.day) == (1, 1)


def window(zone, kind, instant):
    """The boundaries around an instant."""
    around = instant.date()
    near = [around + dt.timedelta(days=days) for days in range(-370, 370)]
    days = [day for day in near if begins(kind, day)]
    before = [day for day in days if day <= around + dt.timedelta(days=2)][-5:]
    after = [day for day in days if day >= around - dt.timedelta(days=2)][:6]
    start = max(b for b in (boundary(zone, day) for day in before) if b <= instant)
    end = min(b for b in (boundary(zone, day) for day in after) if b > instant)
    return start, end


def parsed(zone, text):
    date, time, *second = text.split(" ")
    local = dt.datetime.fromisoformat(f"{date} {time}").replace(tzinfo=zoneinfo.ZoneInfo(zone), fold=len(second))
    return local.astimezone(UTC)


def main():
    assert not zoneinfo.TZPATH, "set PYTHONTZPATH to nothing, or zoneinfo reads the system's data"
    print(f"# Written by windows.py: the windows of Python's zoneinfo with {tzdata.IANA_VERSION}, in seconds since 1970.")
    print("# zone,kind,instant,start,end")
    for zone, odd in ZONES.items():
        instants = [parsed(zone, text) for text in COMMON + odd]
        assert len(instants) == 16, (zone, len(instants))
        for kind in KINDS:
            for instant in instants:
                start, end = window(zone, kind, instant)
                numbers = ",".join(str(int(time.timestamp())) for time in (instant, start, end))
                print(f"{zone},{kind},{numbers}")


main()
