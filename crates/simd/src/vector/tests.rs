use super::*;

struct Check;

impl Kernel for Check {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let numbers = [
            0.0,
            -0.0,
            0.5,
            1.5,
            2.5,
            -0.5,
            -1.5,
            -2.6,
            1e-40,
            -3e9,
            8_388_607.5,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            65519.9,
            65520.0,
            5.97e-8,
            2.98e-8,
            f32::MAX,
            0.1,
        ];
        for &a in &numbers {
            let lanes = lanes(V::splat(a));
            assert!(lanes.iter().all(|lane| lane.to_bits() == a.to_bits()));
            same(V::splat(a).round(), a.round_ties_even());
            same(V::splat(a).floor(), a.floor());
            same(V::splat(a).ceil(), a.ceil());
            same(V::splat(a).trunc(), a.trunc());
            same(V::splat(a).abs(), a.abs());
            same(V::splat(a).neg(), -a);
            same(V::splat(a).sqrt(), a.sqrt());
            same(V::splat(a).round_to_f16(), half::f16::from_f32(a).to_f32());
            assert_eq!(V::any(V::splat(a).is_nan()), a.is_nan());
            for &b in &numbers {
                let (x, y) = (V::splat(a), V::splat(b));
                same(x.add(y), a + b);
                same(x.sub(y), a - b);
                same(x.mul(y), a * b);
                same(x.div(y), a / b);
                same(x.min(y), if a < b { a } else { b });
                same(x.max(y), if a > b { a } else { b });
                same(V::select(x.less(y), x, y), if a < b { a } else { b });
                same(V::select(x.less_equal(y), x, y), if a <= b { a } else { b });
                same(V::select(x.equal(y), x, V::splat(7.0)), if a == b { a } else { 7.0 });
                same(x.abs().with_sign_of(y), a.copysign(b));
                let fused = if V::FUSED { a.mul_add(b, 0.75) } else { a * b + 0.75 };
                same(x.mul_add(y, V::splat(0.75)), fused);
                let fused = if V::FUSED { (-a).mul_add(b, 0.75) } else { 0.75 - a * b };
                same(x.neg_mul_add(y, V::splat(0.75)), fused);
            }
        }
        for (n, power) in [(-149.0, 1e-45), (-126.0, f32::MIN_POSITIVE), (10.0, 1024.0), (0.0, 1.0)]
        {
            same(V::splat(1.0).scale(V::splat(n)), power);
        }
        same(V::splat(1.0).scale(V::splat(128.0)), f32::INFINITY);
        same(V::from_int(V::splat(-77.4).to_int()), -77.0);
        same(V::from_int(V::bits_right_signed::<4>(V::bits(-64i32 as u32))), -4.0);
        same(V::from_int(V::bits_left::<3>(V::bits(5))), 40.0);
        same(V::from_int(V::bits_add(V::bits(5), V::bits(9))), 14.0);
        same(V::from_int(V::bits_sub(V::bits(5), V::bits(9))), -4.0);

        let source: Vec<f32> = (0..V::LANES).map(|lane| lane as f32 * 1.25 - 3.0).collect();
        for count in 0..=V::LANES {
            let mut target = vec![9.0; V::LANES];
            // SAFETY: both have at least `count` elements.
            let loaded = unsafe {
                let loaded = V::load_partial(source.as_ptr(), count);
                loaded.store_partial(target.as_mut_ptr(), count);
                loaded
            };
            let expected: Vec<f32> =
                (0..V::LANES).map(|lane| if lane < count { source[lane] } else { 0.0 }).collect();
            assert_eq!(lanes(loaded)[..V::LANES], expected);
            assert_eq!(target[..count], source[..count]);
            assert!(target[count..].iter().all(|&value| value == 9.0));
        }
        let words: Vec<i16> =
            (0..V::LANES).map(|lane| (lane as i32 * 4000 - 32768) as i16).collect();
        // SAFETY: there are `LANES` integers.
        let numbers = unsafe { V::load_words(words.as_ptr()) };
        let expected: Vec<f32> = words.iter().map(|&word| f32::from(word)).collect();
        assert_eq!(lanes(numbers)[..V::LANES], expected);
        // SAFETY: there are `LANES` elements.
        let loaded = unsafe { V::load(source.as_ptr()) };
        assert_eq!(loaded.sum(), source.iter().sum::<f32>());
        assert_eq!(loaded.maximum(), source[V::LANES - 1]);

        let (first, second) = loaded.interleave(loaded.neg());
        let both: Vec<f32> = source.iter().flat_map(|&lane| [lane, -lane]).collect();
        assert_eq!(lanes(first)[..V::LANES], both[..V::LANES]);
        assert_eq!(lanes(second)[..V::LANES], both[V::LANES..]);
        let offset = |row: usize| V::splat((100 * row) as f32);
        let mut square: [V; MAX_LANES] = std::array::from_fn(|row| loaded.add(offset(row)));
        transpose(&mut square);
        for (column, vector) in square[..V::LANES].iter().enumerate() {
            let expected: Vec<f32> =
                (0..V::LANES).map(|row| source[column] + (100 * row) as f32).collect();
            assert_eq!(lanes(*vector)[..V::LANES], expected);
        }
    }
}

#[inline(always)]
fn lanes<V: Vector>(vector: V) -> [f32; MAX_LANES] {
    let mut lanes = [vector_lane(vector); MAX_LANES];
    // SAFETY: there are at least `LANES` elements.
    unsafe {
        vector.store(lanes.as_mut_ptr());
    }
    lanes
}

#[inline(always)]
fn vector_lane<V: Vector>(vector: V) -> f32 {
    let mut lane = [0.0];
    // SAFETY: there is one element.
    unsafe {
        vector.store_partial(lane.as_mut_ptr(), 1);
    }
    lane[0]
}

#[inline(always)]
fn same<V: Vector>(vector: V, expected: f32) {
    for lane in &lanes(vector)[..V::LANES] {
        assert!(
            lane.to_bits() == expected.to_bits() || lane.is_nan() && expected.is_nan(),
            "{lane:?} is not {expected:?}"
        );
    }
}

#[test]
fn vector_ops_match_scalar_on_every_isa() {
    for isa in Isa::available() {
        dispatch(isa, Check);
    }
}
