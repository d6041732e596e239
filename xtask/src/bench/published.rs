//! Published figures: commit messages and mailing-list threads on btrfs compression and properties, 2014 to 2025.

/// Experiment 1: zstd in the kernel, 2017: Silesia, 211,988,480 bytes, whole files. Method; ratio; compress, adjusted;
/// decompress, adjusted, in MB/s; memory of both in MB.
pub(super) const CODEC: &[(&str, [f64; 7])] = &[
    ("zstd:1", [2.878, 203.05, 224.56, 592.15, 636.60, 1.23, 0.84]),
    ("zstd:3", [3.165, 120.38, 127.63, 535.32, 571.40, 2.47, 1.46]),
    ("zstd:5", [3.261, 82.71, 86.07, 535.32, 571.40, 2.86, 1.46]),
    ("zstd:10", [3.523, 16.01, 16.13, 566.81, 607.42, 13.22, 2.51]),
    ("zstd:15", [3.654, 4.45, 4.46, 559.34, 598.84, 21.61, 4.61]),
    ("zlib:1", [2.744, 73.23, 75.85, 225.52, 231.68, 0.27, 0.04]),
    ("zlib:3", [2.905, 51.50, 52.79, 240.08, 247.07, 0.27, 0.04]),
    ("zlib:6", [3.109, 22.01, 22.24, 251.17, 258.84, 0.27, 0.04]),
    ("zlib:9", [3.135, 9.40, 9.44, 253.27, 287.64, 0.27, 0.04]),
];

/// Experiment 2: Ten copies of Silesia, compress-force, SSD, 2017: ratio, write and read in MB/s.
pub(super) const TEN_COPIES: &[(&str, [f64; 3])] = &[
    ("none", [0.99, 504.0, 686.0]),
    ("lzo", [1.66, 398.0, 442.0]),
    ("zlib:3", [2.58, 65.0, 241.0]),
    ("zstd:1", [2.57, 260.0, 383.0]),
    ("zstd:3", [2.71, 174.0, 408.0]),
    ("zstd:6", [2.87, 70.0, 398.0]),
    ("zstd:9", [2.92, 43.0, 406.0]),
    ("zstd:12", [2.93, 21.0, 408.0]),
    ("zstd:15", [3.01, 11.0, 354.0]),
];

/// Experiment 3: A kernel tar, 2017: tar ratio, extract ratio; copy, extract and read in seconds.
pub(super) const TAR: &[(&str, [f64; 5])] = &[
    ("none", [0.97, 0.78, 0.981, 5.501, 8.807]),
    ("lzo", [2.06, 1.38, 1.631, 8.458, 8.585]),
    ("zlib:3", [3.40, 1.86, 7.750, 21.544, 11.744]),
    ("zstd:1", [3.57, 1.85, 2.579, 11.479, 9.389]),
];

/// Experiment 4: Levels 1 to 15, ten copies of Silesia, SSD, 2019: ratio, write and read in MB/s.
pub(super) const LEVELS: [[f64; 3]; 15] = [
    [2.658, 438.47, 910.51],
    [2.744, 364.86, 886.55],
    [2.801, 336.33, 828.41],
    [2.858, 286.71, 886.55],
    [2.916, 212.77, 556.84],
    [2.363, 119.82, 990.85],
    [3.000, 154.06, 849.30],
    [3.011, 159.54, 875.03],
    [3.025, 100.51, 940.15],
    [3.033, 118.97, 616.26],
    [3.036, 94.19, 802.11],
    [3.037, 73.45, 931.49],
    [3.041, 55.17, 835.26],
    [3.087, 44.70, 716.78],
    [3.126, 37.30, 878.84],
];

/// Experiment 5: Levels −15 to 15 on a Linux 6.13 tar, 2025: stored size as a share, per cent.
pub(super) const SHARES: [(i32, u32); 30] = [
    (-15, 40),
    (-14, 39),
    (-13, 38),
    (-12, 37),
    (-11, 35),
    (-10, 34),
    (-9, 33),
    (-8, 32),
    (-7, 30),
    (-6, 29),
    (-5, 28),
    (-4, 26),
    (-3, 24),
    (-2, 23),
    (-1, 22),
    (1, 19),
    (2, 19),
    (3, 18),
    (4, 18),
    (5, 17),
    (6, 17),
    (7, 16),
    (8, 16),
    (9, 16),
    (10, 16),
    (11, 16),
    (12, 16),
    (13, 16),
    (14, 16),
    (15, 15),
];

/// Experiment 7: N files of 64 KiB, 2014: creation and `ls -lha` in seconds, with 1, 4 and 10 properties of the directory.
pub(super) const PROPERTIES: &[(usize, [[f64; 2]; 3])] = &[
    (10_000, [[3.63, 0.93], [3.94, 1.20], [4.61, 1.35]]),
    (100_000, [[48.56, 9.74], [52.14, 11.48], [58.86, 13.83]]),
    (1_000_000, [[537.72, 125.11], [572.70, 142.13], [656.01, 177.61]]),
];

/// The published row of a method.
pub(super) fn row<const N: usize>(rows: &[(&str, [f64; N])], method: &str) -> Option<[f64; N]> {
    rows.iter().find(|(name, _)| *name == method).map(|(_, row)| *row)
}
