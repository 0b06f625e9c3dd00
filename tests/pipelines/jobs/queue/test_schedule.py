from datetime import datetime, timedelta
from time import tzset
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.pipelines.errors import SettingsError
from cuda_cyclegan.pipelines.jobs.queue.schedule import StartWindow, parse_since, parse_time

DAY = datetime(2026, 11, 20)
DAYS = timedelta(days=1)


def at(clock: str) -> datetime:
    hours, minutes = clock.split(":")
    return DAY.replace(hour=int(hours), minute=int(minutes))


@pytest.mark.parametrize(
    ("window", "clock", "is_open"),
    [
        ("19:00-07:00", "18:59", False),
        ("19:00-07:00", "19:00", True),
        ("19:00-07:00", "00:00", True),
        ("19:00-07:00", "06:59", True),
        ("19:00-07:00", "07:00", False),
        ("night", "23:15", True),
        ("12:30-13:00", "12:29", False),
        ("12:30-13:00", "12:30", True),
        ("12:30-13:00", "13:00", False),
    ],
)
def test_a_window_opens_and_closes_on_the_minute(window: str, clock: str, is_open: bool) -> None:
    assert StartWindow.parse(window).is_open(at(clock)) is is_open


@pytest.mark.parametrize(
    ("clock", "start"),
    [("03:30", DAY.replace(hour=22)), ("22:00", at("22:00")), ("23:00", at("22:00") + DAYS)],
)
def test_a_window_that_is_closed_opens_at_its_next_start(clock: str, start: datetime) -> None:
    assert StartWindow.parse("22:00-23:00").first_open(at(clock)) == start


@pytest.mark.parametrize("text", ["", "19-7", "24:00-07:00", "19:00", "07:00-07:00", "1:00-2:00"])
def test_invalid_window_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="window"):
        StartWindow.parse(text)


def test_a_past_time_is_the_last_of_its_kind() -> None:
    now = datetime(2026, 11, 28, 7, 0).astimezone()
    assert parse_since("18:00", now) == datetime(2026, 11, 27, 18, 0).astimezone()
    assert parse_since("06:30", now) == datetime(2026, 11, 28, 6, 30).astimezone()
    assert parse_since("yesterday", now) == now - timedelta(days=1)
    assert parse_since("2026-11-01", now) == datetime(2026, 11, 1).astimezone()
    for text in ("2026-12-01", "tomorrow", "25:00"):
        with pytest.raises(SettingsError):
            parse_since(text, now)


@given(st.times(), st.integers(0, 1439), st.integers(0, 1439))
def test_a_window_and_its_complement_share_the_day(clock: object, opens: int, closes: int) -> None:
    if opens == closes:
        return
    first, last = (f"{minute // 60:02}:{minute % 60:02}" for minute in (opens, closes))
    moment = datetime.combine(DAY, clock)  # pyright: ignore[reportArgumentType]
    window, others = StartWindow.parse(f"{first}-{last}"), StartWindow.parse(f"{last}-{first}")
    assert window.is_open(moment) != others.is_open(moment)


def test_the_wall_clock_counts_when_it_jumps_for_daylight_saving() -> None:
    zone = ZoneInfo("Europe/Berlin")
    window = StartWindow.parse("01:30-03:30")
    spring = datetime(2026, 3, 29, 0, 0, tzinfo=ZoneInfo("UTC"))  # 01:00; at 02:00 it is 03:00
    opened = [
        minute
        for minute in range(180)
        if window.is_open((spring + timedelta(minutes=minute)).astimezone(zone))
    ]
    assert opened == list(range(30, 90))


def test_a_time_of_day_is_the_next_one() -> None:
    now = at("18:00").astimezone()
    assert parse_time("19:30", now) == at("19:30").astimezone()
    assert parse_time("17:00", now) == (at("17:00") + timedelta(days=1)).astimezone()
    assert parse_time("2026-12-24T19:30", now) == datetime(2026, 12, 24, 19, 30).astimezone()


@pytest.mark.parametrize(
    ("now", "text", "coming"),
    [
        ("02:10+01:00", "02:30", "02:30+01:00"),
        ("02:10+01:00", "2026-10-25T02:30", "02:30+01:00"),
        ("02:45+02:00", "02:30", "02:30+01:00"),
        ("02:10+02:00", "02:30", "02:30+02:00"),
    ],
)
def test_a_time_that_comes_twice_is_the_next_of_both(
    now: str, text: str, coming: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as berlin:
        berlin.setenv("TZ", "Europe/Berlin")
        tzset()
        night = "2026-10-25T"
        found = parse_time(text, datetime.fromisoformat(night + now))
        assert found == datetime.fromisoformat(night + coming)
    tzset()


@pytest.mark.parametrize("text", ["soon", "25:00", "2020-01-01T00:00"])
def test_a_time_that_is_none_or_past_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_time(text, at("18:00").astimezone())


@pytest.mark.parametrize(
    ("text", "coming"),
    [
        ("02:30", "03:00+02:00"),
        ("02:00", "03:00+02:00"),
        ("2027-03-28T02:59:30", "03:00+02:00"),
        ("01:59", "01:59+01:00"),
        ("03:00", "03:00+02:00"),
        ("03:30", "03:30+02:00"),
    ],
)
def test_a_time_that_the_clocks_skip_is_the_end_of_the_gap(
    text: str, coming: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as berlin:
        berlin.setenv("TZ", "Europe/Berlin")
        tzset()
        found = datetime.fromisoformat(f"2027-03-28T{coming}")
        assert parse_time(text, datetime.fromisoformat("2027-03-28T00:30+01:00")) == found
        assert parse_since(text, datetime.fromisoformat("2027-03-28T08:00+02:00")) == found
    tzset()
