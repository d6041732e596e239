//! Sizes for people.

const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// Bytes as `ls -h` and `du -h` print them: in powers of 1024, rounded up, with one digit behind the point below ten.
pub(crate) fn human_size(bytes: u64) -> String {
    let (mut unit, mut letter) = (1_u64, None);
    for next in UNITS {
        // Rounded up, it may be one of the next unit.
        if bytes.div_ceil(unit) < 1024 {
            break;
        }
        (unit, letter) = (unit << 10, Some(next));
    }
    let Some(letter) = letter else { return bytes.to_string() };
    let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(unit));
    if tenths < 100 {
        format!("{}.{}{letter}", tenths / 10, tenths % 10)
    } else {
        format!("{}{letter}", bytes.div_ceil(unit))
    }
}

/// Bytes as btrfs-progs prints them: `16.00KiB`.
pub(crate) fn pretty_size(bytes: u64) -> String {
    let (mut value, mut prefix) = (bytes as f64, None);
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, prefix) = (value / 1024.0, Some(next));
    }
    match prefix {
        Some(prefix) => format!("{value:.2}{prefix}iB"),
        None => format!("{value:.2}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_ls_prints_them() {
        // From GNU ls 9.1: truncate -s BYTES f; ls -lh f
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10189, "10K"),
            (10188, "10K"),
            (10137, "9.9K"),
            (10240, "10K"),
            (10241, "11K"),
            (1_047_552, "1023K"),
            (1_047_553, "1.0M"),
            (1_048_577, "1.1M"),
            (5 << 30, "5.0G"),
            ((1 << 40) - 1, "1.0T"),
            (i64::MAX as u64, "8.0E"),
        ] {
            assert_eq!(human_size(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn sizes_as_btrfs_prints_them() {
        for (bytes, text) in [
            (0, "0.00B"),
            (512, "512.00B"),
            (16384, "16.00KiB"),
            (8 << 20, "8.00MiB"),
            (1_610_612_736, "1.50GiB"),
        ] {
            assert_eq!(pretty_size(bytes), text);
        }
    }
}
