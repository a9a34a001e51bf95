//! Builds the program of an instance. `oracle/inference/language.py` documents the format.

use coremill_mil::infer::{KnownElements, MAX_FOLDED_ELEMENTS, Scalar};
use coremill_mil::ir::{
    Binding, BlockId, Constant, ConstantData, Dim, Expr, Function, Op, OpId, Symbol, TensorType,
    Type,
};
use coremill_tensor::DType;
use serde_json::Value as Json;

use crate::{kind, opset, text};

/// The id of the symbol `s0`; symbols created by inference start at 0.
const FIRST_SYMBOL: u32 = 1 << 20;

/// Values of `s0` to `s5` at which expressions are compared; the Python runner uses the same values.
pub(crate) const ASSIGNMENTS: [[i64; 6]; 3] =
    [[7, 11, 13, 17, 19, 23], [12, 20, 16, 24, 28, 36], [37, 41, 43, 47, 53, 59]];

/// Returns the function of an instance and the tested operation.
pub(crate) fn function(instance: &Json, outputs: usize) -> (Function, OpId) {
    let mut builder =
        Builder { function: Function::new("main", opset(instance)), scope: Vec::new() };
    let body = builder.function.body;
    let mut op = Op::new(kind(text(&instance["op"])));
    for (name, operand) in entries(instance, "inputs") {
        let bindings = builder.operand(body, name, operand);
        if let [binding] = bindings.as_slice() {
            builder.scope.push((name.clone(), binding.clone()));
        }
        op = op.with_list(name.clone(), bindings);
    }
    for (name, operand) in entries(instance, "attributes") {
        op.attributes.insert(name.clone(), constant(operand));
    }
    for described in instance.get("blocks").and_then(Json::as_array).into_iter().flatten() {
        op.blocks.push(builder.block(described));
    }
    let declared = instance.get("outputs").and_then(Json::as_array);
    let ty = |at: usize| declared.and_then(|declared| declared_type(declared.get(at)?));
    let named =
        (0..outputs).map(|at| (format!("op_{at}"), ty(at).unwrap_or(Type::scalar(DType::Fp32))));
    let id = builder.function.add_op(body, op, named.collect::<Vec<_>>());
    let given = builder.function.op(id).outputs.clone();
    builder.function.block_mut(body).outputs = given;
    (builder.function, id)
}

/// The value of an expression at each assignment; `None` if it has symbols that no input has.
pub(crate) fn at_assignments(expr: &Expr) -> Option<Vec<i64>> {
    (0..ASSIGNMENTS.len()).map(|assignment| at_assignment(expr, assignment)).collect()
}

/// The value of an expression at one assignment; `None` if it has symbols that no input has.
pub(crate) fn at_assignment(expr: &Expr, assignment: usize) -> Option<i64> {
    let values = &ASSIGNMENTS[assignment];
    expr.evaluate(&|symbol| values.get(symbol.0.checked_sub(FIRST_SYMBOL)? as usize).copied())
}

/// The instance with its symbols replaced by numbers; `None` if it has no symbols.
pub(crate) fn with_symbols_fixed(instance: &Json, assignment: usize) -> Option<Json> {
    fn replace(value: &mut Json, inside_shape: bool, assignment: usize) -> usize {
        match value {
            Json::String(name) if inside_shape && name != "?" => {
                let index: usize = name.trim_start_matches('s').parse().expect("`s0` to `s5`");
                *value = Json::from(ASSIGNMENTS[assignment][index]);
                1
            }
            Json::Array(parts) => {
                parts.iter_mut().map(|part| replace(part, inside_shape, assignment)).sum()
            }
            Json::Object(entries) => entries
                .iter_mut()
                .map(|(key, part)| replace(part, key == "shape", assignment))
                .sum(),
            _ => 0,
        }
    }
    let mut fixed = instance.clone();
    let entries = fixed.as_object_mut().expect("a map");
    // Recorded results are not part of the program.
    entries.remove("outputs");
    entries.remove("instead");
    (replace(&mut fixed, false, assignment) > 0).then_some(fixed)
}

struct Builder {
    function: Function,
    /// Values that `ref` can refer to.
    scope: Vec<(String, Binding)>,
}

impl Builder {
    fn operand(&mut self, block: BlockId, path: &str, operand: &Json) -> Vec<Binding> {
        if let Some(values) = operand.get("values").and_then(Json::as_array) {
            let parts = values.iter().enumerate();
            return parts
                .flat_map(|(at, part)| self.operand(block, &format!("{path}_{at}"), part))
                .collect();
        }
        if let Some(name) = operand.get("ref") {
            let found = self.scope.iter().rev().find(|(known, _)| known == text(name));
            let (_, binding) = found.unwrap_or_else(|| panic!("nothing is called {name}"));
            return vec![binding.clone()];
        }
        if let Some(name) = operand.get("op") {
            let mut op = Op::new(kind(text(name)));
            for (name, operand) in entries(operand, "inputs") {
                let bindings = self.operand(block, &format!("{path}_{name}"), operand);
                op = op.with_list(name.clone(), bindings);
            }
            // The runner records the number of outputs.
            let count = operand["outputs"].as_u64().unwrap_or(1);
            let outputs =
                (0..count).map(|at| (format!("{path}_out{at}"), Type::scalar(DType::Fp32)));
            let id = self.function.add_op(block, op, outputs.collect::<Vec<_>>());
            let output = operand["output"].as_u64().expect("an index") as usize;
            return vec![Binding::Value(self.function.op(id).outputs[output])];
        }
        if operand.get("const").is_some() {
            let constant = constant(operand);
            let output = (path.to_owned(), constant.ty.clone());
            let id = self.function.add_op(block, Op::constant(constant), [output]);
            return vec![Binding::Value(self.function.op(id).outputs[0])];
        }
        let body = self.function.body;
        vec![Binding::Value(self.function.add_input(body, path, placeholder(operand)))]
    }

    fn block(&mut self, described: &Json) -> BlockId {
        let block = self.function.add_block();
        let outer = self.scope.len();
        for input in described["inputs"].as_array().expect("a list") {
            let name = text(&input[0]);
            let input = self.function.add_input(block, name, placeholder(&input[1]));
            self.scope.push((name.to_owned(), Binding::Value(input)));
        }
        for (at, output) in described["outputs"].as_array().expect("a list").iter().enumerate() {
            for binding in self.operand(block, &format!("block_{}_{at}", block.index()), output) {
                let Binding::Value(value) = binding else { panic!("a literal leaves a block") };
                self.function.block_mut(block).outputs.push(value);
            }
        }
        self.scope.truncate(outer);
        block
    }
}

fn placeholder(operand: &Json) -> Type {
    let dim = |dim: &Json| match dim.as_str() {
        Some("?") => Dim::Unknown,
        Some(name) => {
            let index: u32 = name.trim_start_matches('s').parse().expect("`s0` to `s5`");
            Dim::Symbolic(Expr::from(Symbol(FIRST_SYMBOL + index)))
        }
        None => Dim::Known(dim.as_u64().expect("an extent")),
    };
    let shape = operand["shape"].as_array().expect("a shape").iter().map(dim).collect();
    let tensor = Type::Tensor(TensorType { dtype: dtype(operand), shape });
    if operand.get("list").is_some() {
        // Converters declare the initial length of a list, not that it may grow.
        Type::List(Box::new(tensor), Dim::Known(1))
    } else if operand.get("state").is_some() {
        Type::State(Box::new(tensor))
    } else {
        tensor
    }
}

fn constant(operand: &Json) -> Constant {
    let dtype = dtype(operand);
    let shape: Vec<u64> = operand["shape"]
        .as_array()
        .expect("a shape")
        .iter()
        .map(|extent| extent.as_u64().expect("constants have fixed shapes"))
        .collect();
    if operand.get("listed").is_some() {
        let element = |value: &Json| constant_of_one(dtype, value);
        let parts = operand["value"].as_array().expect("a list").iter().map(element).collect();
        let ty = Type::List(Box::new(Type::scalar(dtype)), Dim::Known(shape[0]));
        return Constant { ty, data: ConstantData::Sequence(parts) };
    }
    let count: u64 = shape.iter().product();
    let elements: Vec<Json> = match operand.get("fill") {
        // Large tensors are weights, whose elements inference ignores.
        Some(_) if count > MAX_FOLDED_ELEMENTS => {
            let bytes = dtype.storage_bytes(count).expect("a fixed width");
            return Constant::bytes(dtype, &shape, vec![0; bytes as usize]);
        }
        Some(element) => vec![element.clone(); count as usize],
        None => operand["value"].as_array().expect("a list").clone(),
    };
    if dtype == DType::String {
        let strings = elements.iter().map(|element| text(element).to_owned()).collect();
        return Constant { ty: Type::tensor(dtype, &shape), data: ConstantData::Strings(strings) };
    }
    let scalar = |element: &Json| match dtype {
        DType::Bool => {
            Scalar::Bool(element.as_bool().unwrap_or_else(|| element.as_i64() != Some(0)))
        }
        _ if dtype.is_float() => Scalar::Float(match element.as_str() {
            Some(text) => text.parse().expect("a number"),
            None => element.as_f64().expect("a number"),
        }),
        _ => Scalar::Int(element.as_i64().expect("an integer")),
    };
    let folded = KnownElements::new(dtype, shape, elements.iter().map(scalar).collect());
    folded.and_then(|folded| folded.to_constant()).expect("elements of the type")
}

fn constant_of_one(dtype: DType, value: &Json) -> Constant {
    if dtype == DType::String {
        return Constant::string(text(value));
    }
    let element = Scalar::Int(value.as_i64().expect("an integer"));
    KnownElements::scalar(dtype, element).to_constant().expect("an element of the type")
}

/// The type of a recorded output as declared in a file.
fn declared_type(output: &Json) -> Option<Type> {
    let dim = |dim: &Json| dim.as_u64().map_or(Dim::Unknown, Dim::Known);
    let shape = output.get("shape")?.as_array()?.iter().map(dim).collect();
    let tensor = Type::Tensor(TensorType { dtype: text(&output["dtype"]).parse().ok()?, shape });
    Some(if output.get("list").is_some() {
        let length = output.get("length").map_or(Dim::Unknown, dim);
        Type::List(Box::new(tensor), length)
    } else if output.get("state").is_some() {
        Type::State(Box::new(tensor))
    } else {
        tensor
    })
}

fn dtype(operand: &Json) -> DType {
    text(&operand["dtype"]).parse().expect("an element type")
}

fn entries<'j>(value: &'j Json, key: &str) -> impl Iterator<Item = (&'j String, &'j Json)> {
    value.get(key).and_then(Json::as_object).into_iter().flatten()
}
