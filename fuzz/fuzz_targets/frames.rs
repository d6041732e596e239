#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| btrfsimg_testkit::fuzz::frames(input));
