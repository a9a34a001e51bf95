//! Programs of arbitrary bytes are rejected or run without panics.

#[path = "../../../fuzz/src/methods.rs"]
mod methods;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn fuzz_seeds_do_not_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "runtime", |data| {
        if let Some((_, rest)) = data.split_first() {
            methods::methods(rest);
            methods::program(rest);
        }
    });
}

/// splitmix64
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[test]
fn random_kernel_calls_do_not_panic() {
    let mut state = 5;
    let mut runs = 0;
    let count = 6000;
    for _ in 0..count {
        let data: Vec<u8> = (0..40).flat_map(|_| next(&mut state).to_le_bytes()).collect();
        runs += usize::from(methods::methods(&data));
    }
    // Most programs are rejected; the others show that the test reaches kernels.
    assert!(runs > count / 50, "only {runs} of {count} programs run");
}

#[test]
fn rejects_random_bytes() {
    assert!(!methods::program(b"ET12 but nothing else"));
    let mut state = 9;
    for _ in 0..200 {
        let data: Vec<u8> = (0..40).flat_map(|_| next(&mut state).to_le_bytes()).collect();
        assert!(!methods::program(&data));
    }
}
