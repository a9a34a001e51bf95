//! Graphs as callers build, compile, run and save them.

use coremill_graph::nn::{
    Attention, AttentionOptions, GatedDeltaNet, GroupNorm, Gru, InstanceNorm, KvCache, Linear,
    LogMel, Lora, Lstm, Mamba, Mamba2, Rope, attention, axial_tables, cholesky, eigh, gated_delta,
    rotate, sample, selective_scan, solve, state_space_dual, svd, top_k_filter, top_p_filter, wkv,
};
use coremill_graph::ops::{Conv, MaxPool};
use coremill_graph::{
    CompileOptions, DType, Device, ErrorKind, Graph, Opset, Param, Precision, Session, Tensor,
};

fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 37 + 11) % 97) as f32 / 97.0 - 0.4).collect()
}

#[test]
fn small_network_runs_and_round_trips_package() {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [1, 3, 8, 8]);
    let weight = graph.param("conv.weight", [4, 3, 3, 3]);
    let bias = graph.param("conv.bias", [4]);
    let y = x.conv(weight, Conv::new().bias(bias).pad_type("same").strides([1, 1])).relu();
    let y = y.max_pool([2, 2], "valid", MaxPool::new().strides([2, 2]));
    let y = y.view([1, 4 * 4 * 4]).matmul_t(graph.param("head", [10, 64]));
    graph.output("logits", y.softmax_on(-1));

    let mut model = Session::new(Device::Host).compile(&graph).expect("it compiles");
    let missing = model.run(&[("x", &ramp(192))]).expect_err("no parameter is set");
    assert_eq!(missing.kind(), ErrorKind::Parameter);
    assert!(missing.to_string().contains("`conv.weight`"), "{missing}");
    model.set_param("conv.weight", ramp(108)).expect("the parameter exists");
    model.set_param("conv.bias", [0.1f32, 0.2, 0.3, 0.4]).expect("the parameter exists");
    model.set_param("head", ramp(640)).expect("the parameter exists");
    let first = model.run(&[("x", &ramp(192))]).expect("it runs");
    let total: f32 = first.floats("logits").expect("floats").iter().sum();
    assert!((total - 1.0).abs() < 1e-2, "{total}");

    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("Small.mlpackage");
    model.save(&path).expect("the package can be written");
    let read = coremill_mlpackage::package::read(&path).expect("the package can be read");
    let mut again = Session::new(Device::Host).load(read).expect("it loads");
    assert_eq!(again.run(&[("x", &ramp(192))]).expect("it runs"), first);

    model.set_param("head", vec![0.0f32; 640]).expect("the parameter exists");
    let mut flat = [0.0; 10];
    model.run_into(&[("x", &ramp(192))], &mut [("logits", &mut flat)]).expect("it runs");
    assert!(flat.iter().all(|&x| (x - 0.1).abs() < 1e-3), "{flat:?}");
}

#[test]
fn compile_reports_all_errors_with_line_numbers() {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [2, 3]);
    let y = x.matmul_t(graph.param("w", [4, 5]));
    let line = line!() - 1;
    let z = x + y;
    x.transpose([0, 2]);
    graph.output("y", z.relu());
    let error = Session::new(Device::Host).compile(&graph).err().expect("the graph is invalid");
    let lines: Vec<_> = error.mistakes().iter().map(|mistake| mistake.location.line()).collect();
    assert_eq!(lines, [line, line + 3], "{error}");
    assert!(error.to_string().contains("tests/graphs.rs"), "{error}");
    assert!(error.to_string().contains("`matmul`"), "{error}");
}

#[test]
fn number_literals_take_tensor_dtype() {
    let graph = Graph::new();
    let ids = graph.input("ids", DType::Int32, [3]);
    let x = graph.input("x", DType::Fp32, [3]);
    graph.output("next", ids + 1);
    graph.output("scaled", 2.0 - (x * 3) / 4.0);
    graph.output("same", x);
    let mut model =
        Session::new(Device::Host).precision(Precision::Fp32).compile(&graph).expect("it compiles");
    let given = model.run(&[("ids", &[1i64, 2, 3]), ("x", &[4.0f32, 8.0, -4.0])]).expect("it runs");
    assert_eq!(given.ints("next"), Some(&[2, 3, 4][..]));
    assert_eq!(given.floats("scaled"), Some(&[-1.0, -4.0, 5.0][..]));
    assert_eq!(given.floats("same"), Some(&[4.0, 8.0, -4.0][..]));
}

#[test]
fn slicing_matches_numpy() {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [2, 5]);
    graph.output("a", x.narrow(1, 1..3));
    graph.output("b", x.narrow(-1, -2..));
    graph.output("c", x.narrow(1, ..-3));
    graph.output("d", x.at(0, -1));
    graph.output("e", x.strided(1, .., 2));
    graph.output("f", x.at(1, 2).unsqueeze(1).broadcast_to([2, 2]));
    let mut model = Session::new(Device::Host).compile(&graph).expect("it compiles");
    let x: Vec<f32> = (0..10).map(|at| at as f32).collect();
    let given = model.run(&[("x", &x)]).expect("it runs");
    let expected: [(&str, &[f32]); 6] = [
        ("a", &[1.0, 2.0, 6.0, 7.0]),
        ("b", &[3.0, 4.0, 8.0, 9.0]),
        ("c", &[0.0, 1.0, 5.0, 6.0]),
        ("d", &[5.0, 6.0, 7.0, 8.0, 9.0]),
        ("e", &[0.0, 2.0, 4.0, 5.0, 7.0, 9.0]),
        ("f", &[2.0, 2.0, 7.0, 7.0]),
    ];
    for (name, expected) in expected {
        assert_eq!(given.floats(name), Some(expected), "{name}");
    }
}

#[test]
fn states_persist_across_runs_and_functions() {
    let fill = Graph::named("fill", Opset::Ios18);
    let x = fill.input("x", DType::Fp32, [4]);
    fill.state("cache", [4]).write(x);
    fill.output("y", x * 2.0);
    let add = Graph::named("add", Opset::Ios18);
    let x = add.input("x", DType::Fp32, [4]);
    let cache = add.state("cache", [4]);
    cache.write(cache.read() + x);
    add.output("y", cache.read());
    let mut model = Session::new(Device::Host).compile_all(&[&fill, &add]).expect("it compiles");
    model.run_function("fill", &[("x", &[1.0f32, 2.0, 3.0, 4.0])]).expect("it runs");
    for turn in 1..=3u8 {
        let given = model.run_function("add", &[("x", &[1.0f32, 0.0, 0.0, 0.0])]).expect("it runs");
        assert_eq!(given.floats("y"), Some(&[1.0 + f32::from(turn), 2.0, 3.0, 4.0][..]));
    }
    model.set_state("cache", &[0.0f32; 4]).expect("the state exists");
    assert_eq!(model.state("cache").expect("the state exists").as_floats(), Some(&[0.0; 4][..]));
}

#[test]
fn branches_and_loops_capture_outer_values() {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [3]);
    let scale = x.sum([0], false);
    let y = graph.cond(scale.greater(0.0), || vec![x * scale], || vec![x - scale]);
    let start = graph.int(0);
    let looped = graph.while_loop(&[start, y[0]], |v| v[0].less(4), |v| vec![v[0] + 1, v[1] + x]);
    graph.output("y", looped[1]);
    let mut model =
        Session::new(Device::Host).precision(Precision::Fp32).compile(&graph).expect("it compiles");
    let given = model.run(&[("x", &[1.0f32, 2.0, 3.0])]).expect("it runs");
    assert_eq!(given.floats("y"), Some(&[10.0, 20.0, 30.0][..]));
    let given = model.run(&[("x", &[-1.0f32, -2.0, 1.0])]).expect("it runs");
    assert_eq!(given.floats("y"), Some(&[-3.0, -8.0, 7.0][..]));
}

#[test]
fn rejects_value_escaping_its_branch() {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [1]);
    let mut kept = None;
    graph.cond(
        x.sum([0], false).greater(0.0),
        || {
            kept = Some(x * 2.0);
            vec![x + 1.0]
        },
        || vec![x - 1.0],
    );
    graph.output("y", kept.expect("the branch is built") + 1.0);
    let error = graph.check().expect_err("the value is used outside its branch");
    assert!(error.to_string().contains("a branch or a loop that has ended"), "{error}");
}

#[test]
fn missing_neural_engine_is_reported_with_hint() {
    let graph = Graph::new();
    graph.output("y", graph.input("x", DType::Fp32, [1]) + 1.0);
    if Device::NeuralEngine.is_available() {
        return;
    }
    let error = Session::new(Device::NeuralEngine)
        .compile(&graph)
        .err()
        .expect("no Neural Engine is available");
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("the Neural Engine is not available"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("`device=host`")));
}

#[test]
fn flexible_inputs_accept_only_sizes_in_range() {
    let graph = Graph::new();
    let x = graph.flexible_input("x", DType::Fp32, &[(1, 16), (2, 2)]);
    graph.output("y", x.sum([0], false));
    let mut model = Session::new(Device::Host).compile(&graph).expect("it compiles");
    let given = model.run(&[("x", &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])]).expect("it runs");
    assert_eq!(given.floats("y"), Some(&[9.0, 12.0][..]));
    assert!(model.run(&[("x", &[1.0f32; 3])]).is_err());
    assert!(model.run(&[("x", &[1.0f32; 34])]).is_err());
}

#[test]
fn rejects_unknown_and_misshaped_parameters() {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [2]);
    graph.output("y", x * graph.param("w", [2]));
    let mut model = Session::new(Device::Host).compile(&graph).expect("it compiles");
    let short = model.set_param("w", [1.0f32]).expect_err("the array is too short");
    assert!(short.to_string().contains("requires 2 elements, got 1"), "{short}");
    let unknown = model.set_param("v", [1.0f32]).expect_err("the name is unknown");
    assert!(
        unknown.to_string().contains("unknown parameter `v`; the only parameter is `w`"),
        "{unknown}"
    );
    let shape = model.set("w", Param::floats([1, 2], &[1.0, 2.0]).expect("a valid parameter"));
    assert!(shape.expect_err("the shape differs").to_string().contains("[1, 2]"));
}

/// The errors of a graph with one input; each must be at a line of this file.
fn mistakes(shape: &[usize], build: impl for<'g> Fn(Tensor<'g>) -> Tensor<'g>) -> String {
    let graph = Graph::new();
    let y = build(graph.input("x", DType::Fp32, shape));
    graph.output("y", y);
    let error = graph.check().expect_err("the graph is invalid");
    for mistake in error.mistakes() {
        assert!(mistake.location.file().ends_with("graphs.rs"), "{mistake}");
    }
    error.to_string()
}

#[test]
fn module_errors_point_to_caller_file() {
    let plain = AttentionOptions::new();
    let expect_error =
        |shape: &[usize], build: for<'g> fn(Tensor<'g>) -> Tensor<'g>, part: &str| {
            let found = mistakes(shape, build);
            assert!(found.contains(part), "{found}");
        };
    mistakes(&[5, 8], |x| Attention::new(4, 2, 4).apply("a", x, None, &plain));
    expect_error(
        &[1, 5, 8],
        |x| Attention::new(4, 0, 4).qkv_bias().project("a", x, None)[1],
        "sizes from 1 to",
    );
    expect_error(
        &[1, 5, 8],
        |x| attention(x, x, x, &AttentionOptions::new().window(0)),
        "window must be at least 1",
    );
    expect_error(
        &[3],
        |x| Lstm::new(4).apply("l", x, None).0,
        "out of range for a tensor of rank 1",
    );
    expect_error(&[3, 1, 4], |x| Gru::new(0).apply("l", x, None).0, "sizes from 1 to");
    expect_error(&[1, 10], |x| LogMel::new(400, 160, 80).apply(x), "`conv`");
    expect_error(&[3, 4], |x| solve(x, x), "found shape [3, 4]");
    expect_error(&[3], |x| svd(x).0, "`[batch, m, n]`; found shape [3]");
    expect_error(&[5, 8], |x| Mamba::new(8, 4, 2).apply("m", x, None), "out of range");
    expect_error(
        &[1, 5, 8],
        |x| GatedDeltaNet::new(0, 4, 4, 4).apply("m", x, None),
        "sizes from 1 to",
    );
    expect_error(&[1, 5, 8], |x| wkv(x, x, x, x, x, x).0, "`transpose`");
    expect_error(&[1, 5, 8], |x| selective_scan(x, x, x, x, x, x).0, "`mul`");
    expect_error(&[1, 5, 8], |x| gated_delta(x, x, x, x, x, x).0, "`transpose`");
    expect_error(&[1, 5, 8], |x| state_space_dual(x, x, x, x, x, x).0, "`transpose`");
    expect_error(&[1, 5, 8, 8], |x| GroupNorm::new(0, 1e-5).apply("n", x), "0 groups");
    expect_error(&[1, 5, 8, 8], |x| GroupNorm::new(3, 1e-5).apply("n", x), "5 channels");
    expect_error(&[1, 4], |x| top_k_filter(x, 0), "must be at least 1, got 0");
    expect_error(&[1, 4], |x| top_p_filter(x, 1.5), "at most 1");
    expect_error(&[1, 4], |x| sample(x, -1.0, None), "temperature");
    expect_error(
        &[1, 2, 5, 4],
        |x| rotate(x, Rope::new(3, 1e4).tables(x.graph(), 5)),
        "an even number",
    );
    expect_error(
        &[1, 2, 5, 6],
        |x| rotate(x, axial_tables(x.graph(), 6, 1e4, 1, 5)),
        "divisible by 4",
    );
    expect_error(&[1, 5], |x| Lora::new(Linear::new(3), 0, 1.0).apply("l", x), "sizes from 1 to");
}

#[test]
fn sampled_token_ids_are_not_rounded_to_fp16() {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [1, 5000]);
    graph.output("drawn", sample(top_k_filter(x, 4), 0.5, Some(1)));
    graph.output("best", sample(x, 0.0, None));
    let mut model = Session::new(Device::Host).compile(&graph).expect("it compiles");
    let mut logits = vec![0.0f32; 5000];
    logits[4099] = 1000.0;
    let outputs = model.run(&[("x", &logits)]).expect("it runs");
    assert_eq!(outputs.ints("drawn"), Some(&[4099][..]));
    assert_eq!(outputs.ints("best"), Some(&[4099][..]));
    // `fp16` would round the number to 4100.
    let function = &model.model().expect("a model").program.functions[0];
    let draws = function.all_ops().find(|(_, op)| op.type_name() == "random_categorical");
    let (_, draw) = draws.expect("an operation that samples");
    let ty = function.value(draw.outputs[0]).ty.as_tensor().expect("a tensor");
    assert_eq!(ty.dtype, DType::Fp32);
}

#[test]
fn rejects_out_of_range_indices_sizes_and_bad_names() {
    let expect_error = |build: for<'g> fn(Tensor<'g>) -> Tensor<'g>, part: &str| {
        let found = mistakes(&[4, 2], build);
        assert!(found.contains(part), "{found}");
    };
    expect_error(|x| x.narrow(0, 2..9), "index 9 is out of range for axis 0 of size 4");
    expect_error(|x| x.at(0, 7), "index 7 is out of range");
    expect_error(|x| x.at(1, -3), "index -3 is out of range");
    expect_error(|x| x.narrow(1, i32::MIN..=i32::MAX), "out of range");
    expect_error(|x| x.view([usize::MAX, 8]), "`reshape`");
    expect_error(|x| x + x.graph().floats([usize::MAX, 8], &[1.0]), "do not fill");
    expect_error(|x| x + x.graph().input("a b", DType::Fp32, [1]), "does not accept this name");
    expect_error(|x| x + x.graph().param("w", [usize::MAX, usize::MAX]), "sizes from 1 to");
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [4, 2]);
    graph.output("last", x.at(0, -1) + x.at(0, -4) * 10.0);
    let mut model = Session::new(Device::Host).compile(&graph).expect("it compiles");
    let outputs = model.run(&[("x", &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])]);
    assert_eq!(outputs.expect("it runs").floats("last"), Some(&[17.0, 28.0][..]));
}

#[test]
fn rejects_reserved_words_only_in_interface_names() {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [4]);
    let memory = graph.state("state", [4]);
    let line = line!() - 1;
    memory.write(x);
    graph.output("y", x + 1.0);
    let error = Session::new(Device::Host).compile(&graph).err().expect("the name is reserved");
    let [mistake] = error.mistakes() else { panic!("{error}") };
    assert_eq!(mistake.location.line(), line, "{error}");
    assert_eq!(mistake.message, "state `state`: Core ML does not accept this name");

    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [4]);
    graph.output("y", (x * graph.param("tensor", [4]) + 1.0).label("bool"));
    let mut model =
        Session::new(Device::Host).compile(&graph).expect("only interface names are restricted");
    model.set_param("tensor", [2.0f32; 4]).expect("the parameter exists");
    let outputs = model.run(&[("x", &[1.0f32, 2.0, 3.0, 4.0])]).expect("it runs");
    assert_eq!(outputs.floats("y"), Some(&[3.0, 5.0, 7.0, 9.0][..]));
}

#[test]
fn declared_names_win_over_generated_names() {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [2]);
    let relu = x.relu();
    let add = graph.input("mul", DType::Fp32, [2]) + relu * 2.0;
    graph.output("relu", add);
    let mut model = Session::new(Device::Host).compile(&graph).expect("it compiles");
    let inputs: [(&str, &dyn coremill_graph::Input); 2] =
        [("x", &[-1.0f32, 3.0]), ("mul", &[10.0f32, 20.0])];
    let outputs = model.run(&inputs).expect("it runs");
    assert_eq!(outputs.floats("relu"), Some(&[10.0, 26.0][..]));

    let graph = Graph::new();
    graph.scope("a", || graph.state("b", [1]));
    let x = graph.input("a_b", DType::Fp32, [1]);
    graph.output("y", x + 1.0);
    let error = graph.check().expect_err("the state is also named `a_b`");
    assert!(error.to_string().contains("input `a_b`: the name is already used"), "{error}");
}

#[test]
fn rejects_unknown_names_in_options() {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [4]);
    graph.output("y", x + 1.0);
    let refused = |options: CompileOptions| {
        let session = Session::new(Device::Host).options(options);
        session
            .compile(&graph)
            .and_then(|mut model| model.prepare())
            .expect_err("the name is unknown")
    };
    let error = refused(CompileOptions::new().fp32_ops(["sofmax"]));
    assert_eq!(
        error.to_string(),
        "`fp32_ops`: unknown operation `sofmax`; did you mean `softmax`?"
    );
    assert_eq!(error.kind(), ErrorKind::Options);
    let error = refused(CompileOptions::new().skipped_passes(["nothing"]));
    assert!(error.hint().is_some_and(|hint| hint.contains("fuse_attention")), "{error:?}");
}

#[test]
fn rejects_tensors_of_other_graphs_and_ended_blocks() {
    let expect_error = |build: fn(&Graph, Tensor<'_>), part: &str| {
        let (graph, other) = (Graph::new(), Graph::new());
        build(&graph, other.input("count", DType::Fp32, [2]).sum([0], false));
        let found = graph.check().expect_err("the tensor is from another graph").to_string();
        assert!(found.starts_with(file!()) && found.contains(part), "{found}");
    };
    expect_error(
        |graph, foreign| graph.output("y", foreign),
        "output `y` belongs to another graph",
    );
    let expected = "`cond`: the predicate belongs to another graph";
    expect_error(
        |graph, foreign| drop(graph.cond(foreign.greater(0.0), Vec::new, Vec::new)),
        expected,
    );
    let expected = "`while_loop`: variable 1 belongs to another graph";
    expect_error(
        |graph, foreign| {
            let variables = [graph.int(0), foreign];
            graph.while_loop(&variables, |all| all[0].less(3), |all| vec![all[0] + 1, all[1]]);
        },
        expected,
    );
    expect_error(|graph, foreign| graph.state("s", [1]).write(foreign), "belongs to another graph");
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [2]);
    let positive = || x.sum([0], false).greater(0.0);
    let mut kept = None;
    graph.cond(positive(), || vec![*kept.insert(positive())], || vec![positive()]);
    graph.cond(kept.expect("the branch was built"), || vec![x], || vec![x]);
    let found = graph.check().expect_err("the branch has ended").to_string();
    assert!(found.contains("predicate is a value of a branch or a loop that has ended"), "{found}");
}

#[test]
fn rejects_incompatible_shapes() {
    let expect_error =
        |shape: &[usize], build: for<'g> fn(Tensor<'g>) -> Tensor<'g>, part: &str| {
            let found = mistakes(shape, build);
            assert!(found.contains(part), "{found}");
        };
    for wanted in [&[4i64, 3][..], &[3], &[0, 2, 3], &[-1, 2, 3], &[2, 0]] {
        let graph = Graph::new();
        graph.input("x", DType::Fp32, [2, 3]).broadcast_to(wanted);
        let found = graph.check().expect_err("the shapes are incompatible").to_string();
        assert!(found.contains("cannot be broadcast to"), "{wanted:?}: {found}");
    }
    expect_error(&[2, 3], |x| x.at(1, 3), "index 3 is out of range for axis 1 of size 3");
    expect_error(
        &[2, 3],
        |x| cholesky(x),
        "`cholesky` requires a tensor of `[batch, n, n]`; found shape [2, 3]",
    );
    expect_error(
        &[1, 2, 3],
        |x| eigh(x).0,
        "`eigh` requires square matrices; found 2 rows, 3 columns",
    );
    expect_error(
        &[4, 4],
        |x| InstanceNorm::new(1e-5).apply("n", x),
        "rank 3 or more; found shape [4, 4]",
    );
    let cached = |x: Tensor<'_>, length: usize, position: i32| {
        let graph = x.graph();
        let cache = KvCache::new(graph, "cache", [1, 2, length, 4]);
        let (position, options) = (graph.int(position), AttentionOptions::default());
        let layer = Attention::new(4, 2, 4);
        graph.output("y", layer.apply_cached("a", x, None, cache, position, &options));
    };
    let check = |shape: &[usize], length: usize| {
        let graph = Graph::new();
        cached(graph.input("x", DType::Fp32, shape), length, 1);
        graph.check().map_err(|error| error.to_string())
    };
    let found = check(&[1, 5, 16], 3).expect_err("the cache is too short");
    assert!(found.contains("a cache of 3 positions has no room for 5 more"), "{found}");
    let found = check(&[5, 16], 8).expect_err("the batch axis is missing");
    assert!(found.contains("requires a tensor of `[batch, positions, width]`"), "{found}");
    // A position is one integer and may be a scalar.
    check(&[1, 2, 16], 8).expect("the cache is long enough");
}

#[test]
fn rejects_conflicting_shared_params_and_states() {
    let build = |name: &str, width: usize, held: usize| {
        let graph = Graph::named(name, Opset::Ios18);
        let x = graph.input("x", DType::Fp32, [1, width]);
        graph.output("y", x * graph.param("w", [width]));
        graph.state("s", [held]).write(graph.floats([held], &vec![1.0; held]));
        graph
    };
    let refused = |other: Graph| {
        let all = Session::new(Device::Host).compile_all(&[&build("one", 2, 3), &other]);
        all.map(|_| ()).expect_err("the functions conflict").to_string()
    };
    assert_eq!(refused(build("one", 2, 3)), "two functions are named `one`");
    let found = refused(build("two", 4, 3));
    assert_eq!(found, "parameter `w` is [2] in function `one` and [4] in `two`");
    let found = refused(build("two", 2, 4));
    assert!(found.starts_with("state `s` is ") && found.ends_with("in `two`"), "{found}");
    let (one, two) = (build("one", 2, 3), build("two", 2, 3));
    Session::new(Device::Host).compile_all(&[&one, &two]).map(|_| ()).expect("the functions agree");
}

/// Rows of one state behave like separate states, whether they are written completely or partially.
#[test]
fn state_rows_behave_like_separate_states() {
    let run = |shared: bool| {
        let graph = Graph::new();
        let x = graph.input("x", DType::Fp32, [1, 2, 1, 32]);
        let position = graph.input("position", DType::Int32, [1]);
        let [keys, values, sum] = match shared {
            true => {
                let all = graph.state("all", [3, 2, 3, 32]);
                [0, 1, 2].map(|row| all.rows(row..row + 1))
            }
            false => ["a", "b", "c"].map(|name| graph.state(name, [1, 2, 3, 32])),
        };
        let (all_keys, all_values) = KvCache::of_states(keys, values).append(position, x, x * 2.0);
        sum.write(sum.read() + all_keys - all_values * 0.25);
        for (name, tensor) in [("keys", all_keys), ("values", all_values), ("sum", sum.read())] {
            graph.output(name, tensor);
        }
        let mut model = Session::new(Device::Host).compile(&graph).expect("compiles");
        let mut results = Vec::new();
        for (step, position) in [2i32, 0, 1].into_iter().enumerate() {
            let x: Vec<f32> = ramp(64).iter().map(|x| x + step as f32).collect();
            let outputs = model.run(&[("x", &x), ("position", &vec![position])]).expect("runs");
            let all = ["keys", "values", "sum"]
                .map(|name| outputs.floats(name).expect("floats").to_vec());
            results.extend(all);
        }
        results
    };
    let found = run(true);
    assert_eq!(found, run(false));
    assert!(found[6].iter().all(|&x| x != 0.0), "all positions are filled");
}

#[test]
fn rejects_out_of_range_state_rows() {
    let graph = Graph::new();
    let state = graph.state("s", [4, 32]);
    assert_eq!(state.rows(0..4).shape(), [4, 32]);
    assert_eq!(state.rows(1..4).rows(1..2).shape(), [1, 32]);
    state.rows(3..5);
    let error = graph.check().expect_err("the rows are out of range").to_string();
    assert!(error.contains("rows 3 to 5 are out of range for a state of 4 rows"), "{error}");
}

/// The memory of 16 elements for each channel is stored in rows of 32 elements. The window has one row for each position.
#[test]
fn recurrent_layer_states_have_aligned_shapes() {
    let mamba = Mamba::new(64, 16, 4);
    let shapes = mamba.shapes(1);
    assert_eq!((shapes.window, shapes.memory), (vec![1, 3, 64], vec![1, 32, 32]));
    let shapes = Mamba2::new(2, 16, 64).shapes(1);
    assert_eq!((shapes.window, shapes.memory), (vec![1, 3, 160], vec![1, 2, 16, 64]));
    // 3 · 5 elements cannot be divided into rows of 32.
    assert_eq!(Mamba::new(3, 5, 4).shapes(1).memory, [1, 3, 5]);
}
