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

/// `2026-11-30 15:41:52.123456789 +0000`, as stat(1) has it.
pub(crate) fn iso_time(t: Timespec) -> String {
    let second = t.sec.get().rem_euclid(DAY) % 60;
    format!("{}:{second:02}.{:09} +0000", list_time(t), t.nsec)
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
}
