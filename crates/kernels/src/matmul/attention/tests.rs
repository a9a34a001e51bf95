use super::*;

/// Deterministic distinct numbers.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 * 4.0 - 2.0
    };
    (0..count).map(|_| next()).collect()
}

fn expected(
    shape: AttentionShape,
    scale: f64,
    [query, key, value]: [&Heads; 3],
    mask: Option<&Mask>,
    [set, head, row]: [usize; 3],
) -> Vec<f64> {
    let vector = |heads: &Heads, head: usize, at: usize, depth: usize| {
        let start = set * heads.strides[0] + head * heads.strides[1] + at * heads.strides[2];
        heads.elements[start..start + depth].iter().map(|&x| f64::from(x)).collect::<Vec<_>>()
    };
    let query = vector(query, head, row, shape.depth);
    let mut weights: Vec<f64> = (0..shape.keys)
        .map(|at| {
            let key = vector(key, head / shape.group, at, shape.depth);
            let score: f64 = query.iter().zip(key).map(|(x, y)| x * y).sum();
            let added = mask.map_or(0.0, |mask| {
                let [a, b, c, d] = mask.strides;
                f64::from(mask.elements[set * a + head * b + row * c + at * d])
            });
            score * scale + added
        })
        .collect();
    let most = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    weights.iter_mut().for_each(|weight| *weight = (*weight - most).exp());
    let total: f64 = weights.iter().sum();
    let mut sums = vec![0.0; shape.value_depth];
    for (at, weight) in weights.iter().enumerate() {
        let value = vector(value, head / shape.group, at, shape.value_depth);
        sums.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight / total * value);
    }
    sums
}

fn check(shape: AttentionShape, masked: bool, rows_first: bool) {
    let AttentionShape { batch, heads, group, queries, keys, depth, value_depth } = shape;
    // Heads interleaved in each row, or rows contiguous in each head.
    let strides = |heads: usize, rows: usize, depth: usize| {
        if rows_first {
            [heads * rows * depth, depth, heads * depth]
        } else {
            [heads * rows * depth, rows * depth, depth]
        }
    };
    let shared = heads / group;
    let query = numbers(batch * heads * queries * depth, 1);
    let key = numbers(batch * shared * keys * depth, 2);
    let value = numbers(batch * shared * keys * value_depth, 3);
    let query = Heads { elements: &query, strides: strides(heads, queries, depth) };
    let key = Heads { elements: &key, strides: strides(shared, keys, depth) };
    let value = Heads { elements: &value, strides: strides(shared, keys, value_depth) };
    let mut added = numbers(queries * keys, 4);
    if keys > 1 {
        added.iter_mut().skip(1).step_by(3).for_each(|x| *x = f32::NEG_INFINITY);
    }
    let mask = masked.then_some(Mask { elements: &added, strides: [0, 0, keys, 1] });
    let scale = 1.0 / (depth as f32).sqrt();
    for isa in Isa::available() {
        for threads in [1, 3] {
            let mut results = vec![7.0; batch * heads * queries * value_depth];
            let output =
                HeadsMut { elements: &mut results, strides: strides(heads, queries, value_depth) };
            let pool = Pool::new(threads);
            attend(&pool, isa, shape, scale, query, key, value, mask, output);
            let strides = strides(heads, queries, value_depth);
            for set in 0..batch {
                for head in 0..heads {
                    for row in 0..queries {
                        let start = set * strides[0] + head * strides[1] + row * strides[2];
                        let found = &results[start..start + value_depth];
                        let place = [set, head, row];
                        let inputs = [&query, &key, &value];
                        let expected =
                            expected(shape, f64::from(scale), inputs, mask.as_ref(), place);
                        for (found, expected) in found.iter().zip(expected) {
                            let error = (f64::from(*found) - expected).abs();
                            assert!(error < 1e-5, "{isa} {shape:?}: {found} for {expected}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn attention_matches_definition() {
    let sizes: &[(usize, usize, usize, usize)] = if cfg!(miri) {
        &[(1, 3, 4, 5), (6, 5, 3, 2)]
    } else {
        &[
            (1, 1, 1, 1),
            (1, 37, 8, 8),
            (2, 50, 64, 64),
            (3, 7, 5, 19),
            (4, 16, 33, 70),
            (5, 9, 3, 4),
            (17, 50, 64, 64),
            (33, 70, 40, 17),
            (130, 49, 16, 100),
        ]
    };
    for &(queries, keys, depth, value_depth) in sizes {
        let shape =
            AttentionShape { batch: 2, heads: 4, group: 2, queries, keys, depth, value_depth };
        check(shape, false, false);
        check(shape, true, true);
        check(AttentionShape { group: 1, batch: 1, heads: 1, ..shape }, true, false);
    }
}

#[test]
fn fully_masked_query_gives_nan() {
    for queries in [1, 6] {
        let shape = AttentionShape {
            batch: 1,
            heads: 1,
            group: 1,
            queries,
            keys: 20,
            depth: 4,
            value_depth: 3,
        };
        let elements = numbers(20 * 4, 5);
        let heads = Heads { elements: &elements, strides: [0, 0, 4] };
        let hidden = [f32::NEG_INFINITY; 20];
        let mask = Mask { elements: &hidden, strides: [0, 0, 0, 1] };
        let mut results = vec![0.0; queries * 3];
        let output = HeadsMut { elements: &mut results, strides: [0, 0, 3] };
        let pool = Pool::new(1);
        attend(&pool, Isa::detect(), shape, 0.5, heads, heads, heads, Some(mask), output);
        assert!(results.iter().all(|result| result.is_nan()), "{results:?}");
    }
}

#[test]
fn keys_masked_for_all_queries_are_not_read() {
    for (queries, hidden) in [(1, -3e4), (3, f32::NEG_INFINITY), (9, -3e4)] {
        let (keys, depth, shown) = (41, 16, 5..29);
        let shape = AttentionShape {
            batch: 1,
            heads: 2,
            group: 2,
            queries,
            keys,
            depth,
            value_depth: depth,
        };
        let mut stored = numbers(keys * depth, 3);
        let query = numbers(2 * queries * depth, 4);
        // Each query sees its own part of the keys.
        let shows = |query: usize, key: usize| {
            let last = shown.end - (queries - 1 - query);
            (shown.start + query % 2..last).contains(&key)
        };
        let mask: Vec<f32> = (0..queries * keys)
            .map(|at| if shows(at / keys, at % keys) { 0.25 } else { hidden })
            .collect();
        let query = Heads { elements: &query, strides: [0, queries * depth, depth] };
        let mask = Mask { elements: &mask, strides: [0, 0, keys, 1] };
        let heads = Heads { elements: &stored, strides: [0, 0, depth] };
        let mut wanted = vec![];
        for head in 0..2 {
            for row in 0..queries {
                let place = [0, head, row];
                let inputs = [&query, &heads, &heads];
                wanted.extend(expected(shape, 0.25, inputs, Some(&mask), place));
            }
        }
        stored[..shown.start * depth].fill(f32::NAN);
        stored[shown.end * depth..].fill(f32::INFINITY);
        let heads = Heads { elements: &stored, strides: [0, 0, depth] };
        for isa in Isa::available() {
            let mut results = vec![0.0; wanted.len()];
            let output = HeadsMut { elements: &mut results, strides: [0, queries * depth, depth] };
            let pool = Pool::new(1);
            attend(&pool, isa, shape, 0.25, query, heads, heads, Some(mask), output);
            for (found, wanted) in results.iter().zip(&wanted) {
                let error = (f64::from(*found) - wanted).abs();
                assert!(error < 1e-5, "{isa} {queries}: {found} for {wanted}");
            }
        }
    }
}

#[test]
fn fully_masked_query_disables_key_skipping() {
    // The mask adds the same finite number to all scores of the first query, so softmax ignores it and no key may be skipped.
    let shape = AttentionShape {
        batch: 1,
        heads: 1,
        group: 1,
        queries: 2,
        keys: 9,
        depth: 4,
        value_depth: 4,
    };
    let mask: Vec<f32> = (0..18).map(|at| if (9..12).contains(&at) { 0.0 } else { -3e4 }).collect();
    let mask = Mask { elements: &mask, strides: [0, 0, 9, 1] };
    let row = AttentionShape { queries: 1, ..shape };
    assert_eq!(shown_keys(&shape, &mask), None);
    assert_eq!(shown_keys(&row, &Mask { elements: &mask.elements[9..], ..mask }), Some(0..3));
}

#[test]
#[should_panic(expected = "results overlap")]
fn rejects_overlapping_results() {
    let shape = AttentionShape {
        batch: 1,
        heads: 2,
        group: 1,
        queries: 2,
        keys: 2,
        depth: 2,
        value_depth: 2,
    };
    let elements = [0.0; 8];
    let heads = Heads { elements: &elements, strides: [8, 4, 2] };
    let mut results = [0.0; 8];
    let output = HeadsMut { elements: &mut results, strides: [8, 1, 2] };
    attend(&Pool::new(1), Isa::Portable, shape, 1.0, heads, heads, heads, None, output);
}

#[test]
fn attention_over_int16_vectors_matches_definition() {
    let sizes: &[(usize, usize, usize, usize)] = if cfg!(miri) {
        &[(1, 3, 4, 5), (6, 5, 3, 2)]
    } else {
        &[
            (1, 1, 1, 1),
            (1, 37, 8, 64),
            (2, 50, 64, 33),
            (3, 7, 5, 19),
            (4, 16, 33, 70),
            (33, 70, 40, 17),
        ]
    };
    for &(queries, keys, depth, value_depth) in sizes {
        let shape =
            AttentionShape { batch: 2, heads: 4, group: 2, queries, keys, depth, value_depth };
        let query = numbers(2 * 4 * queries * depth, 1);
        let query =
            Heads { elements: &query, strides: [4 * queries * depth, queries * depth, depth] };
        let added = numbers(queries * keys, 4);
        let mask = Mask { elements: &added, strides: [0, 0, keys, 1] };
        for isa in Isa::available() {
            // The buffer starts with three vectors that belong to no head.
            let vectors = |depth: usize, seed: u32| {
                let mut vectors = WordVectors::zeros(3 + 2 * 2 * keys, depth);
                vectors.write(isa, 3, &numbers(2 * 2 * keys * depth, seed));
                let mut elements = vec![9.0; 2 * 2 * keys * depth];
                vectors.read(isa, 3, &mut elements);
                (vectors, elements)
            };
            let ((key, keys_read), (value, values_read)) =
                (vectors(depth, 2), vectors(value_depth, 3));
            let floats = |elements, depth| Heads {
                elements,
                strides: [2 * keys * depth, keys * depth, depth],
            };
            let inputs = [&query, &floats(&keys_read, depth), &floats(&values_read, value_depth)];
            let words = |vectors| WordHeads { vectors, first: 3, strides: [2 * keys, keys, 1] };
            let mut results = vec![7.0; 2 * 4 * queries * value_depth];
            let strides = [4 * queries * value_depth, queries * value_depth, value_depth];
            let output = HeadsMut { elements: &mut results, strides };
            attend(
                &Pool::new(2),
                isa,
                shape,
                0.3,
                query,
                words(&key),
                words(&value),
                Some(mask),
                output,
            );
            for (at, results) in results.chunks(value_depth).enumerate() {
                let place = [at / queries / 4, at / queries % 4, at % queries];
                let expected = expected(shape, f64::from(0.3f32), inputs, Some(&mask), place);
                for (found, expected) in results.iter().zip(expected) {
                    let error = (f64::from(*found) - expected).abs();
                    assert!(error < 1e-5, "{isa} {shape:?}: {found} for {expected}");
                }
            }
        }
    }
}

#[test]
fn int16_vectors_are_accurate_to_half_step() {
    for isa in Isa::available() {
        let mut elements = numbers(5 * 21, 8);
        elements[21..42].fill(0.0);
        elements[60] = f32::INFINITY;
        elements[84..].iter_mut().for_each(|element| *element *= 1e-20);
        let mut vectors = WordVectors::zeros(6, 21);
        vectors.write(isa, 1, &elements);
        let mut found = vec![1.0; 6 * 21];
        vectors.read(isa, 0, &mut found);
        assert_eq!(found[..21], [0.0; 21]);
        for (index, (vector, found)) in elements.chunks(21).zip(found[21..].chunks(21)).enumerate()
        {
            if index == 2 {
                assert!(found.iter().all(|element| element.is_nan()), "{isa}");
                continue;
            }
            let most = vector.iter().fold(0f32, |most, element| most.max(element.abs()));
            for (element, found) in vector.iter().zip(found) {
                assert!((element - found).abs() <= most / 65000.0, "{isa}: {found} for {element}");
            }
        }
        assert_eq!(
            (vectors.count(), vectors.depth(), vectors.bytes()),
            (6, 21, 6 * 21 * 2 + 6 * 4)
        );
    }
}
