#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rubelet_fuzz::run("api_object", bytes));
