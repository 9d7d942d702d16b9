#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| shoal_fuzz_cases::joining::invite(data));
