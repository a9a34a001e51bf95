//! Runs every operation with every element type that the operation table allows, for computed and
//! constant operands. Nothing may panic. The result must not depend on which operands are constant,
//! and must equal the fp32 result if that is an integer.
//!
//! The programs are the cases in `cases/*.jsonl` with a single operation, with their operands
//! converted.

#[expect(dead_code, reason = "only other tests read the expected results")]
#[path = "cases/case.rs"]
mod case;

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use case::{Case, model_of};
use coremill_engine::{Array, Elements, Engine, LoadOptions, Numerics, Value};
use coremill_mil::infer::analyze;
use coremill_mil::ir::{Binding, Constant, Function, Op, OpId, Program, Type, ValueId};
use coremill_mil::ops::{Accepts, OpKind, OpRow};
use coremill_tensor::DType;
use coremill_verify::verify;

/// Number of programs per definition, and of conversions per program.
const CASES_EACH: usize = 3;
const MAX_CONVERSIONS: usize = 60;

/// Relative to the largest element: fp16 rounds operands and results.
const TOLERANCE: f32 = 4e-3;

/// Types to try for the values of a list. Inference rejects some.
const VALUES: &[DType] = &[DType::Fp32, DType::Fp16, DType::Int32, DType::Int8, DType::Bool];

/// Operations whose result depends on the type by definition: they keep bits, use the type's range,
/// or truncate integers.
const BY_TYPE: &[OpKind] = &[
    OpKind::Cast,
    OpKind::ConstexprAffineDequantize,
    OpKind::Dequantize,
    OpKind::FloorDiv,
    OpKind::Mod,
    OpKind::Pow,
    OpKind::Quantize,
    OpKind::RealDiv,
];

/// The only operation of a program, its table row, and the values of the program's inputs.
struct Single {
    program: Program,
    op: OpId,
    row: &'static OpRow,
    arrays: HashMap<ValueId, Array>,
}

impl Single {
    fn of(case: &Case) -> Option<Single> {
        let program = case.program().ok()?;
        let function = program.functions.first()?;
        let ops: Vec<_> = function.all_ops().filter(|(_, op)| !op.is_constant()).collect();
        let [(id, op)] = *ops else { return None };
        let kind = op.kind()?;
        let row = kind.row(function.opset)?;
        let is_tensor =
            |accepts: &Accepts| matches!(accepts, Accepts::Tensor { .. } | Accepts::Values);
        let plain = row.parameters.iter().all(|parameter| is_tensor(&parameter.accepts));
        if !plain || !op.blocks.is_empty() || kind.is_constexpr() {
            return None;
        }
        let named = |input: &ValueId| {
            let name = &function.value(*input).name;
            let (_, array) = case.inputs.iter().find(|(own, _)| own == name)?;
            Some((*input, small(array)?))
        };
        let arrays = function.inputs().iter().map(named).collect::<Option<_>>()?;
        Some(Single { op: id, row, arrays, program })
    }

    fn function(&self) -> &Function {
        &self.program.functions[0]
    }
}

/// Replaces floats with small integers, which every type represents. Integers are indices or sizes and stay.
fn small(array: &Array) -> Option<Array> {
    match array.elements() {
        Elements::Floats(floats) => {
            let whole = floats.iter().map(|x| (x.abs() * 2.0).round().min(9.0) + 1.0).collect();
            Some(Array::floats(DType::Fp32, array.shape(), whole))
        }
        Elements::Ints(_) => Some(array.clone()),
        Elements::Texts(_) => None,
    }
}

fn converted(array: &Array, dtype: DType) -> Option<Array> {
    let floats: Vec<f32> = match array.elements() {
        Elements::Floats(floats) => floats.to_vec(),
        Elements::Ints(ints) => ints.iter().map(|&int| int as f32).collect(),
        Elements::Texts(_) => return None,
    };
    if dtype.is_float() {
        return Some(Array::floats(dtype, array.shape(), floats));
    }
    if dtype == DType::Bool {
        let truths = floats.iter().map(|&x| i32::from(x > 1.0)).collect();
        return Some(Array::ints(dtype, array.shape(), truths));
    }
    let (least, most) = dtype.integer_range()?;
    let fits = |x: &f32| x.fract() == 0.0 && (least..=most).contains(&(*x as i128));
    if !floats.iter().all(fits) {
        return None;
    }
    let ints = floats.iter().map(|&x| x as i32).collect();
    Some(Array::ints(dtype, array.shape(), ints))
}

/// All assignments of types to type variables, and to parameters that allow several types without a
/// variable.
fn assignments(row: &OpRow) -> Vec<BTreeMap<&'static str, DType>> {
    let mut all = vec![BTreeMap::new()];
    for parameter in row.parameters {
        let (variable, dtypes) = match parameter.accepts {
            Accepts::Tensor { variable, dtypes } => (variable, dtypes),
            Accepts::Values => (None, VALUES),
            _ => continue,
        };
        let key = variable.unwrap_or(parameter.name);
        if dtypes.len() < 2 || all[0].contains_key(key) {
            continue;
        }
        let with = |known: &BTreeMap<&'static str, DType>| {
            let known = known.clone();
            let of = move |dtype: &DType| {
                let mut next = known.clone();
                next.insert(key, *dtype);
                next
            };
            dtypes.iter().map(of).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// The program with operands of these types, and the `constants` inlined. `None` if a value cannot
/// be converted.
fn retyped(
    single: &Single,
    types: &BTreeMap<&'static str, DType>,
    constants: &[ValueId],
) -> Option<(Program, Vec<(String, Array)>)> {
    let mut program = single.program.clone();
    let source = single.function();
    let function = &mut program.functions[0];
    let mut fresh = Function::new(&function.name, function.opset);
    let body = fresh.body;
    let mut op = Op { outputs: Vec::new(), inputs: Vec::new(), ..source.op(single.op).clone() };
    let (mut given, mut known): (Vec<(String, Array)>, HashMap<(ValueId, DType), Binding>) =
        (Vec::new(), HashMap::new());
    for input in &source.op(single.op).inputs {
        let parameter = single.row.parameter(&input.name)?;
        let wanted = match parameter.accepts {
            Accepts::Tensor { variable, .. } => types.get(variable.unwrap_or(parameter.name)),
            _ => types.get(parameter.name),
        };
        let mut bound = Vec::with_capacity(input.bindings.len());
        for binding in &input.bindings {
            let array = match binding {
                Binding::Value(id) => match single.arrays.get(id) {
                    Some(array) => array.clone(),
                    None => Array::from_constant(source.constant(*id)?).ok()?,
                },
                Binding::Literal(constant) => match constant.as_str() {
                    Some(_) => {
                        bound.push(binding.clone());
                        continue;
                    }
                    None => Array::from_constant(constant).ok()?,
                },
            };
            let dtype = wanted.copied().unwrap_or(array.dtype());
            let array = converted(&array, dtype)?;
            let id = match binding {
                Binding::Value(id) if single.arrays.contains_key(id) && !constants.contains(id) => {
                    *id
                }
                _ => {
                    let shape: Vec<u64> =
                        array.shape().iter().map(|&extent| extent as u64).collect();
                    bound.push(Binding::Literal(Constant::bytes(dtype, &shape, array.to_bytes()?)));
                    continue;
                }
            };
            if let Some(known) = known.get(&(id, dtype)) {
                bound.push(known.clone());
                continue;
            }
            // Functions allow few input types; the others are cast.
            let plain = match dtype {
                DType::Fp16 | DType::Fp32 | DType::Int32 => dtype,
                _ => DType::Int32,
            };
            let shape: Vec<u64> = array.shape().iter().map(|&extent| extent as u64).collect();
            let name = format!("{}_{}", source.value(id).name, given.len());
            let mut value = fresh.add_input(body, &name, Type::tensor(plain, &shape));
            given.push((name.clone(), converted_back(&array, plain)?));
            if plain != dtype {
                let cast = Op::new(OpKind::Cast)
                    .with("x", Binding::Value(value))
                    .with("dtype", Binding::Literal(Constant::string(dtype.name())));
                let outputs = [(format!("{name}_cast"), Type::tensor(dtype, &shape))];
                let cast = fresh.add_op(body, cast, outputs);
                value = fresh.op(cast).outputs[0];
            }
            known.insert((id, dtype), Binding::Value(value));
            bound.push(Binding::Value(value));
        }
        op.set_input(input.name.clone(), bound);
    }
    if given.is_empty() {
        // A function must have an input and use it.
        let input = fresh.add_input(body, "unused", Type::tensor(DType::Fp32, &[1]));
        let identity = Op::new(OpKind::Identity).with("x", Binding::Value(input));
        let outputs = [("used".to_owned(), Type::tensor(DType::Fp32, &[1]))];
        fresh.add_op(body, identity, outputs);
        given.push(("unused".to_owned(), Array::floats(DType::Fp32, [1], vec![0.0])));
    }
    let outputs = source.op(single.op).outputs.iter();
    let outputs: Vec<_> =
        outputs.map(|&y| (source.value(y).name.clone(), Type::scalar(DType::Fp32))).collect();
    let id = fresh.add_op(body, op, outputs);
    let (analysis, problems) = analyze(&fresh);
    if !problems.is_empty() {
        return None;
    }
    let mut shown = Vec::new();
    for output in fresh.op(id).outputs.clone() {
        let ty = analysis.ty(output)?.erased();
        let tensor = ty.as_tensor()?.clone();
        fresh.value_mut(output).ty = ty;
        let target = match tensor.dtype {
            DType::Fp16 | DType::Fp32 | DType::Int32 => {
                shown.push(output);
                continue;
            }
            _ => DType::Int32,
        };
        let cast = Op::new(OpKind::Cast)
            .with("x", Binding::Value(output))
            .with("dtype", Binding::Literal(Constant::string(target.name())));
        let mut plain = tensor;
        plain.dtype = target;
        let name = format!("{}_shown", fresh.value(output).name);
        let cast = fresh.add_op(body, cast, [(name, Type::Tensor(plain))]);
        shown.push(fresh.op(cast).outputs[0]);
    }
    fresh.block_mut(body).outputs = shown;
    *function = fresh;
    Some((program, given))
}

/// Converts to a type that function inputs allow.
fn converted_back(array: &Array, dtype: DType) -> Option<Array> {
    match array.elements() {
        Elements::Ints(ints) if dtype == DType::Int32 => {
            Some(Array::ints(dtype, array.shape(), ints.to_vec()))
        }
        _ => converted(array, dtype),
    }
}

/// Runs a program. `None` if the verifier rejects it.
fn run(
    program: Program,
    given: &[(String, Array)],
    numerics: Numerics,
) -> Option<Result<Vec<Array>, String>> {
    let model = model_of(program).ok()?;
    let verified = verify(&model).ok()?;
    let options = LoadOptions { numerics, threads: 1, ..LoadOptions::default() };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let engine = Engine::load(&verified, &options)?;
        let mut session = engine.session("main")?;
        let given: Vec<_> =
            given.iter().map(|(name, array)| (name.as_str(), array.clone())).collect();
        // The second run packs weights, and the third uses them.
        session.run(&given)?;
        session.run(&given)?;
        session.run(&given)
    }));
    Some(match outcome {
        Err(_) => Err("panics".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(outputs)) => {
            let arrays = outputs.0.into_iter().filter_map(|(_, value)| match value {
                Value::Array(array) => Some(array),
                _ => None,
            });
            Ok(arrays.collect())
        }
    })
}

/// Describes the first difference. With `whole_only`, ignores expected elements that are not finite, are large, or that
/// an integer type rounds.
fn difference(found: &[Array], wanted: &[Array], whole_only: bool) -> Option<String> {
    for (found, wanted) in found.iter().zip(wanted) {
        if found.shape() != wanted.shape() {
            return Some(format!("{:?} became {:?}", wanted.shape(), found.shape()));
        }
        let number = |array: &Array| match array.elements() {
            Elements::Floats(floats) => floats.to_vec(),
            Elements::Ints(ints) => ints.iter().map(|&int| int as f32).collect(),
            Elements::Texts(_) => Vec::new(),
        };
        let (ours, theirs) = (number(found), number(wanted));
        let scale =
            theirs.iter().filter(|x| x.is_finite()).fold(1.0f32, |most, x| most.max(x.abs()));
        let is_int = found.as_floats().is_none();
        for (at, (x, y)) in ours.iter().zip(&theirs).enumerate() {
            if x == y || x.is_nan() && y.is_nan() {
                continue;
            }
            if whole_only && (!y.is_finite() || y.abs() > 100.0 || is_int && y.fract().abs() > 1e-4)
            {
                continue;
            }
            if (x - y).abs() > TOLERANCE * scale {
                return Some(format!("element {at} is {x}, not {y}"));
            }
        }
    }
    None
}

#[test]
fn every_operand_dtype_computes_or_errors() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut taken: BTreeMap<(&str, String), usize> = BTreeMap::new();
    let (mut failures, mut refusals) = (Vec::new(), BTreeMap::<String, usize>::new());
    let mut count = 0;
    for case in case::all() {
        let Some(single) = Single::of(&case) else { continue };
        let kind = single.row.kind;
        let definition = (kind.name(), single.row.since.to_string());
        if taken.get(&definition) == Some(&CASES_EACH) {
            continue;
        }
        let before = count;
        let all = assignments(single.row);
        let step = all.len().div_ceil(MAX_CONVERSIONS).max(1);
        let inputs: Vec<ValueId> = single.function().inputs().to_vec();
        let mut plain: Option<Vec<Array>> = None;
        // The fp32 result is the reference for the other types.
        let is_plain =
            |types: &BTreeMap<&str, DType>| types.values().all(|&dtype| dtype == DType::Fp32);
        let first = all.iter().filter(|types| is_plain(types));
        let rest = all.iter().filter(|types| !is_plain(types)).step_by(step);
        for types in first.chain(rest) {
            let mut constant_sets: Vec<Vec<ValueId>> = vec![Vec::new(), inputs.clone()];
            if inputs.len() > 1 {
                constant_sets.extend(inputs.iter().map(|&input| vec![input]));
            }
            let mut computed: Option<Vec<Array>> = None;
            for constants in &constant_sets {
                let Some((program, given)) = retyped(&single, types, constants) else { continue };
                for numerics in [Numerics::Fast, Numerics::Rounded] {
                    let Some(outcome) = run(program.clone(), &given, numerics) else { continue };
                    count += 1;
                    let names: Vec<_> =
                        constants.iter().map(|&id| &single.function().value(id).name).collect();
                    let label =
                        format!("{} as {types:?}, constant {names:?}, {numerics:?}", case.id);
                    match outcome {
                        Err(error) if error == "panics" => {
                            failures.push(format!("{label}: panics"))
                        }
                        Err(error) => {
                            *refusals.entry(format!("{}: {error}", kind.name())).or_default() += 1
                        }
                        Ok(arrays) => {
                            // Conversion to bool changes the values.
                            let keeps = !BY_TYPE.contains(&kind)
                                && !kind.is_random()
                                && types.values().all(|&dtype| dtype != DType::Bool);
                            let fp32_results = plain.as_ref().filter(|_| keeps);
                            let mismatch = computed
                                .as_ref()
                                .and_then(|wanted| difference(&arrays, wanted, false));
                            let mismatch = mismatch.filter(|_| !kind.is_random());
                            let mismatch = mismatch.or_else(|| {
                                fp32_results.and_then(|wanted| difference(&arrays, wanted, true))
                            });
                            if let Some(mismatch) = mismatch {
                                failures.push(format!("{label}: {mismatch}"));
                            }
                            computed.get_or_insert(arrays);
                        }
                    }
                }
            }
            if is_plain(types) && !types.is_empty() {
                plain = computed;
            }
        }
        if count > before {
            *taken.entry(definition).or_default() += 1;
        }
    }
    let _ = std::panic::take_hook();
    println!("{count} runs of {} definitions", taken.len());
    for (refusal, count) in &refusals {
        println!("{count:5} {refusal}");
    }
    case::finish(&failures, count);
    assert!(taken.len() > 180, "only {} definitions were run", taken.len());
}
