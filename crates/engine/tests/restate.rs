//! Tests replacing constants: plans stay if they do not depend on the constants, and the results
//! equal a program with the new constants.

use coremill_engine::{Array, Engine, LoadOptions, Numerics};
use coremill_mil::ir::{Constant, ValueId};
use coremill_mil::model::{self, Model};
use coremill_mil::text;
use coremill_tensor::{Buffer, DType};
use coremill_verify as verify;

/// Layers for each kind of kernel, and constants that decide a plan: the axes of a norm, a
/// number in an elementwise chain.
const PROGRAM: &str = "
    program(1.3) {
        func main<ios17>(tensor<fp32, [3, 70]> x) {
            tensor<fp32, [70, 70]> w = const()[val = tensor<fp32, [70, 70]>(W)];
            tensor<fp32, [70]> b = const()[val = tensor<fp32, [70]>(B)];
            tensor<fp32, [70]> g = const()[val = tensor<fp32, [70]>(G)];
            fp32 s = const()[val = fp32(S)];
            tensor<fp32, [3, 70]> l = linear(x = x, weight = w, bias = b);
            tensor<fp32, [3, 70]> n = layer_norm(x = l, axes = tensor<int32, [1]>([1]), gamma = g);
            tensor<fp32, [3, 70]> m = mul(x = n, y = s);
            tensor<fp32, [3, 70]> y = sub(x = m, y = g);
        } -> (y);
    }
";

fn numbers(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 37 + salt * 101 + 11) % 97) as f32 / 97.0 - 0.4).collect()
}

/// The program, with weights derived from `salts`.
fn program(salts: [usize; 4]) -> Model {
    let list = |count: usize, salt: usize| {
        let shown: Vec<_> = numbers(count, salt).iter().map(|x| format!("{x:?}")).collect();
        format!("[{}]", shown.join(", "))
    };
    let rows: Vec<_> = numbers(70 * 70, salts[0])
        .chunks(70)
        .map(|row| row.iter().map(|x| format!("{x:?}")).collect::<Vec<_>>().join(", "))
        .map(|row| format!("[{row}]"))
        .collect();
    let text = PROGRAM
        .replace("(W)", &format!("([{}])", rows.join(", ")))
        .replace("(B)", &format!("({})", list(70, salts[1])))
        .replace("(G)", &format!("({})", list(70, salts[2])))
        .replace("(S)", &format!("({:?})", salts[3] as f32 + 0.5));
    let program = text::parse(&text, &text::NoWeights).unwrap_or_else(|error| panic!("{error}"));
    model::describe(program).unwrap_or_else(|error| panic!("{error}"))
}

fn engine(model: &Model, numerics: Numerics) -> Engine {
    let verified = verify::verify(model).unwrap_or_else(|report| panic!("{report:?}"));
    let options = LoadOptions { numerics, threads: 1, ..LoadOptions::default() };
    Engine::load(&verified, &options).expect("it loads")
}

fn run(session: &mut coremill_engine::Session) -> Vec<f32> {
    let x = Array::floats(DType::Fp32, [3, 70], numbers(210, 9));
    session.run(&[("x", x)]).expect("it runs").floats("y").expect("floats").to_vec()
}

fn value(model: &Model, name: &str) -> ValueId {
    let function = &model.program.functions[0];
    let outputs = function.all_ops().flat_map(|(_, op)| &op.outputs);
    outputs.copied().find(|&value| function.value(value).name == name).expect("a value")
}

fn constant(shape: &[u64], elements: &[f32]) -> Constant {
    let bytes: Vec<u8> = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
    Constant::bytes(DType::Fp32, shape, Buffer::from(bytes))
}

#[test]
fn updates_constants_and_keeps_plans() {
    let model = program([1, 2, 3, 4]);
    for numerics in [Numerics::Fast, Numerics::Rounded] {
        let engine = engine(&model, numerics);
        let mut sessions = [(); 2].map(|()| engine.session("main").expect("a session"));
        sessions.iter_mut().for_each(|session| drop(run(session)));
        assert_eq!(engine.plans_made(), 1);
        let mut salts = [1, 2, 3, 4];
        let changes: [(usize, &str, &[u64], bool); 4] = [
            (0, "w", &[70, 70], true),
            (1, "b", &[70], true),
            (2, "g", &[70], true),
            // A scalar is part of the elementwise kernel's program, so the plan is made again.
            (3, "s", &[], false),
        ];
        for (at, name, shape, keeps_plan) in changes {
            salts[at] += 40;
            let count: u64 = shape.iter().product();
            let elements = match at {
                3 => vec![salts[3] as f32 + 0.5],
                _ => numbers(count as usize, salts[at]),
            };
            let before = engine.plans_made();
            assert!(
                engine.update_constants(
                    "main",
                    vec![(value(&model, name), constant(shape, &elements))]
                )
            );
            let expected = {
                let fresh = self::engine(&program(salts), numerics);
                run(&mut fresh.session("main").expect("a session"))
            };
            for session in &mut sessions {
                assert_eq!(run(session), expected, "{name}, {numerics:?}");
            }
            assert_eq!(engine.plans_made() == before, keeps_plan, "{name}, {numerics:?}");
        }
    }
}

#[test]
fn rejects_mismatched_constant_updates() {
    let model = program([1, 2, 3, 4]);
    let engine = engine(&model, Numerics::Fast);
    let mut session = engine.session("main").expect("a session");
    let before = run(&mut session);
    let (w, l) = (value(&model, "w"), value(&model, "l"));
    let short = constant(&[70], &numbers(70, 5));
    let fits = constant(&[70, 70], &numbers(4900, 5));
    assert!(!engine.update_constants("main", vec![(w, short)]), "the shape differs");
    assert!(!engine.update_constants("main", vec![(l, fits.clone())]), "`l` is not a constant");
    assert!(!engine.update_constants("other", vec![(w, fits)]), "there is no function `other`");
    assert_eq!(run(&mut session), before);
}

#[test]
fn adopts_models_that_differ_only_in_constants() {
    let engine = engine(&program([1, 2, 3, 4]), Numerics::Fast);
    let mut session = engine.session("main").expect("a session");
    run(&mut session);
    let next = program([5, 2, 6, 4]);
    assert!(engine.update_constants_from(&verify::verify(&next).expect("it is sound")));
    let fresh = self::engine(&next, Numerics::Fast);
    assert_eq!(run(&mut session), run(&mut fresh.session("main").expect("a session")));
    assert_eq!(engine.plans_made(), 1);

    let mut other = next.clone();
    other.program.functions[0].name = "another".to_owned();
    let described = model::describe(other.program).unwrap_or_else(|error| panic!("{error}"));
    assert!(!engine.update_constants_from(&verify::verify(&described).expect("it is sound")));
}
