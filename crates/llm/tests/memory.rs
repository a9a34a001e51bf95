//! Memory of the KV cache.

use coremill_engine::{Array, Engine, LoadOptions};
use coremill_graph::DType;
use coremill_llm::{BuildOptions, DECODE, PREFILL};
use coremill_verify::verify;

mod support;

const CONTEXT: usize = 32;

#[test]
fn kv_cache_takes_two_bytes_per_element() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = support::deep(&folder.path().join("deep"));
    let config = model.config();
    let heads = 2 * config.layers * config.kv_heads;
    let options = BuildOptions::default().context(CONTEXT).prefill(8);
    let model = model.to_model(&options).expect("built");
    let verified = verify(&model).expect("sound");
    let engine = Engine::load(&verified, &LoadOptions::default()).expect("loads");
    for (function, tokens) in [(DECODE, 1), (PREFILL, 8)] {
        let mut session = engine.session(function).expect("a session");
        let head = *session.state("cache").expect("a state").shape().last().expect("4 axes");
        let ints =
            |count: usize, value: i32| Array::ints(DType::Int32, [count], vec![value; count]);
        let ids = Array::ints(DType::Int32, [1, tokens], vec![1; tokens]);
        let mut inputs = vec![("tokens", ids), ("position", ints(1, 0))];
        if tokens > 1 {
            inputs.push(("last", ints(1, tokens as i32 - 1)));
        }
        assert_eq!(session.state("cache").expect("a state").bytes(), 0);
        session.run(&inputs).expect("runs");
        let cache = session.state("cache").expect("a state");
        // 2 bytes for each element, and a scale of 4 bytes for each vector.
        assert_eq!(cache.bytes(), heads * CONTEXT * (2 * head + 4), "{function}");
        let array = cache.to_array();
        assert!(array.as_floats().is_some_and(|floats| floats.iter().any(|&float| float != 0.0)));
    }
}
