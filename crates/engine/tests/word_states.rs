//! KV caches that only attention reads are stored as 16-bit integers.

use coremill_engine::{Array, Engine, Hooks, LoadOptions, Numerics, Observer, Session};
use coremill_mil::{model, text};
use coremill_tensor::DType;
use coremill_verify as verify;

const LAYERS: usize = 2;
const POSITIONS: usize = 40;
const HEAD: usize = 24;

/// Order of the state updates and reads in a layer.
enum Order {
    UpdatesFirst,
    EachInTurn,
}

/// A decoder of two layers with keys and values of three heads in one state.
fn program(tokens: usize) -> String {
    program_of(tokens, Order::UpdatesFirst, "")
}

/// Like [`program`], with `after` at the end of the function.
fn program_of(tokens: usize, order: Order, after: &str) -> String {
    let mut body = String::new();
    for layer in 0..LAYERS {
        let parts = [("k", 2 * layer), ("v", 2 * layer + 1)];
        let updates = parts.map(|(part, row)| {
            format!(
                "tensor<int32, [4]> {part}{layer}_begin = concat(values = (tensor<int32, [2]>([{row}, 0]), position, tensor<int32, [1]>([0])), axis = int32(0), interleave = bool(false));
                tensor<int32, [4]> {part}{layer}_end = add(x = {part}{layer}_begin, y = tensor<int32, [4]>([1, 3, {tokens}, {HEAD}]));
                tensor<fp16, [1, 3, {tokens}, {HEAD}]> {part}{layer}_new = mul(x = x, y = fp16({row}.5));
                tensor<fp16, [4, 3, {POSITIONS}, {HEAD}]> {part}{layer}_old = read_state(input = cache);
                tensor<fp16, [4, 3, {POSITIONS}, {HEAD}]> {part}{layer}_all = slice_update(x = {part}{layer}_old, update = {part}{layer}_new, begin = {part}{layer}_begin, end = {part}{layer}_end);
                write_state(input = cache, data = {part}{layer}_all);
                "
            )
        });
        let reads = parts.map(|(part, row)| {
            let next = row + 1;
            format!(
                "tensor<fp16, [4, 3, {POSITIONS}, {HEAD}]> {part}{layer}_read = read_state(input = cache);
                tensor<fp16, [1, 3, {POSITIONS}, {HEAD}]> {part}{layer} = slice_by_index(x = {part}{layer}_read, begin = tensor<int32, [4]>([{row}, 0, 0, 0]), end = tensor<int32, [4]>([{next}, 3, {POSITIONS}, {HEAD}]));
                "
            )
        });
        let ([k, v], [read_k, read_v]) = (updates, reads);
        body += &match order {
            Order::UpdatesFirst => [k, v, read_k, read_v].concat(),
            Order::EachInTurn => [k, read_k, v, read_v].concat(),
        };
        body += &format!(
            "tensor<fp16, [1, 3, {tokens}, {HEAD}]> o{layer} = scaled_dot_product_attention(query = x, key = k{layer}, value = v{layer}, attn_mask = mask);
            "
        );
    }
    format!(
        "program(1.3) {{
            func main<ios18>(tensor<fp16, [1, 3, {tokens}, {HEAD}]> x, tensor<fp16, [1, 1, {tokens}, {POSITIONS}]> mask,
                tensor<int32, [1]> position, state<tensor<fp16, [4, 3, {POSITIONS}, {HEAD}]>> cache) {{
                {body}
                tensor<fp16, [1, 3, {tokens}, {HEAD}]> y = add(x = o0, y = o1);
                {after}
            }} -> (y);
        }}"
    )
}

fn session(text: &str, numerics: Numerics) -> Session {
    let program = text::parse(text, &text::NoWeights).unwrap_or_else(|error| panic!("{error}"));
    let model = model::describe(program).unwrap_or_else(|error| panic!("{error}"));
    let verified = verify::verify(&model).unwrap_or_else(|report| panic!("{report:?}"));
    let options = LoadOptions { numerics, threads: 2, ..LoadOptions::default() };
    let engine = Engine::load(&verified, &options).expect("it loads");
    engine.session("main").expect("there is a main")
}

/// Inputs of a call at a position.
fn inputs(tokens: usize, position: usize) -> [(&'static str, Array); 3] {
    let wave = |at: usize| ((at * 37 + position * 101) as f32 * 0.61).sin() * 1.5;
    let x = (0..3 * tokens * HEAD).map(wave).collect();
    let hides = |at: usize| at % POSITIONS > position + at / POSITIONS;
    let mask = (0..tokens * POSITIONS).map(|at| if hides(at) { -3e4 } else { 0.0 }).collect();
    [
        ("x", Array::floats(DType::Fp16, [1, 3, tokens, HEAD], x)),
        ("mask", Array::floats(DType::Fp16, [1, 1, tokens, POSITIONS], mask)),
        ("position", Array::ints(DType::Int32, [1], vec![position as i32])),
    ]
}

/// Runs a session at several positions, op by op if `observed`.
fn outputs(session: &mut Session, tokens: usize, observed: bool) -> Vec<f32> {
    let mut all = Vec::new();
    for position in (0..POSITIONS - tokens).step_by(tokens) {
        let mut ignore = |_: &str, _: &str, _: &coremill_engine::Value| {};
        let observe: Option<Observer> = if observed { Some(&mut ignore) } else { None };
        let mut hooks = Hooks { observe, ..Hooks::default() };
        let outputs = session.run_with(&inputs(tokens, position), &mut hooks).expect("it runs");
        all.extend_from_slice(outputs.floats("y").expect("an output"));
    }
    all
}

fn largest_difference(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right).map(|(left, right)| (left - right).abs()).fold(0.0, f32::max)
}

/// Size of the state in 16 bits, with a scale for each vector.
const WORDS: usize = 4 * 3 * POSITIONS * (2 * HEAD + 4);

/// Size of the state as floats.
const FLOATS: usize = 4 * 3 * POSITIONS * HEAD * 4;

#[test]
fn int16_caches_halve_memory_and_match_float_results() {
    // One query, a few, and too many for attention to use the cache in place.
    for tokens in [1, 3, 9] {
        let text = program(tokens);
        let mut compact = session(&text, Numerics::Fast);
        let mut plain = session(&text, Numerics::Fast);
        let (found, expected) =
            (outputs(&mut compact, tokens, false), outputs(&mut plain, tokens, true));
        let state = |session: &Session| session.state("cache").expect("a state").clone();
        assert_eq!((state(&compact).bytes(), state(&plain).bytes()), (WORDS, FLOATS));
        let difference = largest_difference(&found, &expected);
        // Values are up to 5.25; one step of 16-bit integers is then 1.6e-4.
        assert!((1e-7..2e-4).contains(&difference), "{tokens}: {difference}");
        let (cache, exact) = (state(&compact).to_array(), state(&plain).to_array());
        let (cache, exact) =
            (cache.as_floats().expect("floats"), exact.as_floats().expect("floats"));
        for (vector, exact) in cache.chunks(HEAD).zip(exact.chunks(HEAD)) {
            let most = exact.iter().fold(0f32, |most, element| most.max(element.abs()));
            assert!(largest_difference(vector, exact) <= most / 32768.0);
        }
    }
}

#[test]
fn ineligible_caches_stay_floats() {
    let others = "tensor<fp16, [4, 3, 40, 24]> all = read_state(input = cache);
        tensor<fp16, [4, 3, 40, 24]> twice = add(x = all, y = all);
        write_state(input = cache, data = twice);";
    let text = program_of(1, Order::UpdatesFirst, others);
    let mut fast = session(&text, Numerics::Fast);
    outputs(&mut fast, 1, false);
    assert_eq!(fast.state("cache").expect("a state").bytes(), FLOATS);
    // The keys are read before the values are written, so the state changes between the reads.
    let mut fast = session(&program_of(1, Order::EachInTurn, ""), Numerics::Fast);
    outputs(&mut fast, 1, false);
    assert_eq!(fast.state("cache").expect("a state").bytes(), FLOATS);
    // Rounded numerics need the exact fp16 elements.
    let mut rounded = session(&program(1), Numerics::Rounded);
    outputs(&mut rounded, 1, false);
    assert_eq!(rounded.state("cache").expect("a state").bytes(), FLOATS);
}

#[test]
fn moves_int16_cache_between_sessions_unchanged() {
    let mut first = session(&program(9), Numerics::Fast);
    let mut second = session(&program(1), Numerics::Fast);
    outputs(&mut first, 9, false);
    let state = first.take_state("cache").expect("a zero state").expect("a state");
    assert_eq!((state.bytes(), first.state("cache").expect("a state").bytes()), (WORDS, 0));
    let array = state.to_array();
    second.put_state("cache", state).expect("it fits");
    assert_eq!(second.state("cache").expect("a state").bytes(), WORDS);
    assert_eq!(second.state("cache").expect("a state").to_array(), array);
    let other = Array::floats(DType::Fp16, [4, 3, 40, 23], vec![0.0; 4 * 3 * 40 * 23]);
    assert!(second.put_state("cache", other.into()).is_err());
    // Sets the same values as an array, as another backend would provide them.
    let mut third = session(&program(1), Numerics::Fast);
    third.set_state("cache", array).expect("it fits");
    let run = |session: &mut Session| {
        let outputs = session.run(&inputs(1, 30)).expect("it runs");
        outputs.floats("y").expect("an output").to_vec()
    };
    let difference = largest_difference(&run(&mut second), &run(&mut third));
    assert!(difference < 1e-4, "{difference}");
}
