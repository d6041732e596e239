//! Times in UTC, whatever the locale.

use btrfsimg_ondisk::Timespec;

const DAY: i64 = 86_400;

/// Year, month and day of a count of days since 1970-01-01 (proleptic Gregorian).
fn civil(days: i64) -> (i64, i64, i64) {
    // Howard Hinnant's algorithm: eras of 400 years that start on 1 March.
    let shifted = days.saturating_add(719_468);
    let era = shifted.div_euclid(146_097);
    let doe = shifted.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

/// `2026-11-30 15:41`: to the minute.
pub(crate) fn list_time(t: Timespec) -> String {
    let (year, month, day) = civil(t.sec.get().div_euclid(DAY));
    let second = t.sec.get().rem_euclid(DAY);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", second / 3600, second / 60 % 60)
}

/// `2026-11-30 15:41:52`: to the second.
pub(crate) fn second(t: Timespec) -> String {
    format!("{}:{:02}", list_time(t), t.sec.get().rem_euclid(DAY) % 60)
}

/// `2026-11-30 15:41:52.123456789 +0000`, as stat(1) has it.
pub(crate) fn iso_time(t: Timespec) -> String {
    let second = t.sec.get().rem_euclid(DAY) % 60;
    format!("{}:{second:02}.{:09} +0000", list_time(t), t.nsec)
}

/// Days since 1970-01-01; none for a date that is not in the calendar.
fn days(year: i64, month: u32, day: u32) -> Option<i64> {
    let shifted = if month > 2 { year } else { year - 1 };
    let era = shifted.div_euclid(400);
    let yoe = shifted.rem_euclid(400);
    let doy = (153 * ((i64::from(month) + 9) % 12) + 2) / 5 + i64::from(day) - 1;
    let days = era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468;
    (civil(days) == (year, month.into(), day.into())).then_some(days)
}

/// A time as people write it: `@SECONDS[.FRACTION]`, or `YYYY-MM-DD[ HH:MM[:SS[.FRACTION]]]` (also with `T` in between),
/// and behind it `Z`, `UTC`, or how far it is from that: `+HH[:]MM`.
pub(crate) fn parse_time(text: &str) -> Option<Timespec> {
    let text = text.trim();
    if let Some(seconds) = text.strip_prefix('@') {
        let (whole, nanos) = fraction(seconds)?;
        let sec: i64 = whole.parse().ok()?;
        // -1.5 is half a second before -1.
        let before = whole.starts_with('-') && nanos > 0;
        return Some(if before {
            Timespec::new(sec.checked_sub(1)?, 1_000_000_000 - nanos)
        } else {
            Timespec::new(sec, nanos)
        });
    }
    let (date, rest) = text.split_at_checked(10)?;
    let mut parts = date.split('-');
    let (year, month, day) =
        (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let day = days(year.into(), month, day).filter(|_| (1..=12).contains(&month))?;
    let (clock, offset) = split_zone(rest.trim_start_matches(['T', ' ']))?;
    let (whole, nanos) = fraction(clock)?;
    let mut second = 0;
    if !whole.is_empty() {
        let parts: Vec<u32> = whole.split(':').map(|part| digits(part, 2)).collect::<Option<_>>()?;
        let (hour, minute, sec) = match parts[..] {
            [hour, minute] if nanos == 0 => (hour, minute, 0),
            [hour, minute, sec] => (hour, minute, sec),
            _ => return None,
        };
        if hour > 23 || minute > 59 || sec > 59 {
            return None;
        }
        second = i64::from(hour * 3600 + minute * 60 + sec);
    }
    Some(Timespec::new(day * DAY + second - offset, nanos))
}

/// A time as touch(1) takes it with `-t`: `[[CC]YY]MMDDhhmm[.ss]`, in UTC. Without a year it is in that of `now`;
/// years of two digits are those from 1969 to 2068.
pub(crate) fn parse_stamp(text: &str, now: Timespec) -> Option<Timespec> {
    let (stamp, second) = text.split_once('.').unwrap_or((text, "00"));
    if !stamp.is_ascii() {
        return None;
    }
    let (year, rest) = stamp.split_at_checked(stamp.len().checked_sub(8)?)?;
    let year = match year.len() {
        0 => civil(now.sec.get().div_euclid(DAY)).0,
        2 => match i64::from(digits(year, 2)?) {
            short @ 69.. => 1900 + short,
            short => 2000 + short,
        },
        _ => digits(year, 4)?.into(),
    };
    let part = |at: usize| digits(rest.get(at..at + 2)?, 2);
    let (month, day, hour, minute) = (part(0)?, part(2)?, part(4)?, part(6)?);
    let second = digits(second, 2)?;
    if !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let clock = i64::from(hour * 3600 + minute * 60 + second);
    Some(Timespec::new(days(year, month, day)? * DAY + clock, 0))
}

/// Exactly that many decimal digits.
fn digits(text: &str, count: usize) -> Option<u32> {
    let good = text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    if good { text.parse().ok() } else { None }
}

/// What is before a decimal point, and nanoseconds behind it.
fn fraction(text: &str) -> Option<(&str, u32)> {
    let Some((whole, fraction)) = text.split_once('.') else { return Some((text, 0)) };
    let good = (1..=9).contains(&fraction.len()) && fraction.bytes().all(|b| b.is_ascii_digit());
    if good { Some((whole, format!("{fraction:0<9}").parse().ok()?)) } else { None }
}

/// A time of day, and the seconds by which its zone is ahead of UTC.
fn split_zone(text: &str) -> Option<(&str, i64)> {
    if let Some(clock) = text.strip_suffix('Z').or_else(|| text.strip_suffix("UTC")) {
        return Some((clock.trim_end(), 0));
    }
    let Some(at) = text.rfind(['+', '-']) else { return Some((text, 0)) };
    let zone = text[at + 1..].replace(':', "");
    let (hours, minutes) = zone.split_at_checked(2)?;
    let ahead = i64::from(digits(hours, 2)?) * 3600 + i64::from(digits(minutes, 2)?) * 60;
    Some((text[..at].trim_end(), if text[at..].starts_with('-') { -ahead } else { ahead }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_date_prints_them() {
        // From: date -u -d @SEC '+%F %T'
        let cases = [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_827_696, "2000-02-29 12:34:56"),
            (4_294_967_296, "2106-02-07 06:28:16"),
            (-2_208_988_800, "1900-01-01 00:00:00"),
        ];
        for (sec, text) in cases {
            assert_eq!(iso_time(Timespec::new(sec, 7)), format!("{text}.000000007 +0000"));
        }
        for sec in [i64::MIN, i64::MAX] {
            iso_time(Timespec::new(sec, u32::MAX));
        }
    }

    #[test]
    fn stamps_as_touch_reads_them() {
        // From: TZ=UTC touch -t STAMP f && stat -c %Y f, in 2026
        let now = Timespec::new(1_796_000_000, 0);
        let cases = [
            ("202601311234.56", 1_769_862_896),
            ("2601311234", 1_769_862_840),
            ("01311234", 1_769_862_840),
            ("6901010000", -31_536_000),
            ("6812312359.59", 3_124_223_999),
            ("190112132045.51", -2_147_483_649),
            ("200002290000", 951_782_400),
        ];
        for (text, sec) in cases {
            let time = parse_stamp(text, now).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((time.sec.get(), time.nsec.get()), (sec, 0), "{text}");
        }
        for text in [
            "",
            "1",
            "0131123",
            "202602300000",
            "202613010000",
            "01312400",
            "0131123456",
            "01311234.5",
            "1312é34",
        ] {
            assert!(parse_stamp(text, now).is_none(), "{text}");
        }
    }

    #[test]
    fn times_as_date_reads_them() {
        // From: date -u -d TEXT +%s.%N
        let cases = [
            ("@1700000000.5", 1_700_000_000, 500_000_000),
            ("@-1.25", -2, 750_000_000),
            ("2026-01-31", 1_769_817_600, 0),
            ("2026-01-31 12:34", 1_769_862_840, 0),
            ("2026-01-31T12:34:56.789", 1_769_862_896, 789_000_000),
            ("2026-01-31 12:34:56 +0130", 1_769_857_496, 0),
            ("2026-01-31 12:34:56-05:00", 1_769_880_896, 0),
            ("2000-02-29 00:00:00Z", 951_782_400, 0),
            ("1901-12-13 20:45:51 UTC", -2_147_483_649, 0),
        ];
        for (text, sec, nsec) in cases {
            let time = parse_time(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((time.sec.get(), time.nsec.get()), (sec, nsec), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "2026-02-30",
            "2026-13-01",
            "2026-1-1",
            "@",
            "@1.",
            "2026-01-01 24:00",
            "2026-01-01 1:00",
        ] {
            assert!(parse_time(text).is_none(), "{text}");
        }
    }
}
