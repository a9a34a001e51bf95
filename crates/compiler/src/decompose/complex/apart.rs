//! Operators that apply to the real and imaginary parts separately.

use coremill_pt2::Output;
use coremill_pt2::operators::Operator;

use super::{Parts, Rule, is_complex_value};
use crate::decompose::prelude::*;
use crate::parts::part_of;

pub(super) const RULES: &[(&[&str], Rule)] = &[
    (&["aten.ones", "aten.ones_like", "aten.new_ones", "aten.eye"], of_reals),
    (&["aten.vdot", "aten.linalg_vecdot"], conjugated_product),
    (&["aten.sym_size", "aten.sym_numel"], of_shape),
];

/// The rule for an operator, if its properties in the operator table imply one.
pub(super) fn rule(operator: Operator) -> Option<Rule> {
    if operator.apart {
        Some(apart)
    } else if operator.bilinear {
        Some(product)
    } else {
        None
    }
}

/// Arguments that have a real and an imaginary part. Other arguments are indices, conditions and options.
const NUMBERS: [&str; 12] = [
    "self",
    "input",
    "tensor",
    "tensors",
    "other",
    "src",
    "source",
    "value",
    "values",
    "fill_value",
    "s",
    "x",
];

#[derive(Clone, Copy, PartialEq)]
enum ComplexPart {
    Real,
    Imaginary,
}

impl Call<'_> {
    /// Real or imaginary part of an argument. The imaginary part of a real argument is zero.
    fn part(&mut self, name: &str, argument: &Argument, which: ComplexPart) -> Result<Argument> {
        let is_number = self.number_dtype(argument).is_some();
        Ok(match (argument, which) {
            (Argument::List(items), _) => {
                let items = items.iter().map(|item| self.part(name, item, which));
                Argument::List(items.collect::<Result<_, _>>()?)
            }
            (Argument::None, _) => Argument::None,
            (Argument::Complex(real, _), ComplexPart::Real) => Argument::Float(*real),
            (Argument::Complex(_, imaginary), ComplexPart::Imaginary) => {
                Argument::Float(*imaginary)
            }
            (number, ComplexPart::Real) if is_number => number.clone(),
            (_, ComplexPart::Imaginary) if is_number => Argument::Float(0.0),
            (argument, ComplexPart::Real) => self.parts_of(name, argument)?.real.argument(),
            (argument, ComplexPart::Imaginary) => match self.parts_of(name, argument)? {
                Parts { imaginary: Some(imaginary), .. } => imaginary.argument(),
                Parts { real, imaginary: None } => {
                    let dtype = self.part_dtype();
                    self.full(real.sizes, Argument::Float(0.0), dtype)?.argument()
                }
            },
        })
    }

    /// Emits the call again with real arguments and real results.
    fn once_more(&mut self, arguments: Vec<Argument>) -> Result<Vec<Tensor>> {
        let node = self.node;
        let mut is_left = false;
        for argument in &arguments {
            is_left |= matches!(argument, Argument::Complex(..));
            argument.for_each_value(&mut |id| is_left |= is_complex_value(&self.frame.graph, id));
        }
        if is_left {
            refuse!("`{}` has a complex operand where only real ones are supported", node.target);
        }
        let types = (0..node.results().count()).map(|index| {
            let noted = self.result(index)?;
            Ok((part_of(noted.dtype).unwrap_or(noted.dtype), noted.sizes.clone()))
        });
        let types = types.collect::<Result<_>>()?;
        let schema = node.schema.iter().flat_map(|schema| &schema.arguments);
        let given: Vec<_> =
            schema.map(|parameter| parameter.name.as_str()).zip(arguments).collect();
        let operator = node.target.to_string();
        match node.outputs.first() {
            Some(Output::List(_)) => self.emit_list(&operator, &given, types),
            _ => self.emit_several(&operator, &given, types),
        }
    }

    /// Emits the call again with another first argument.
    pub(super) fn with_self(&mut self, x: &Tensor) -> Result<Vec<Tensor>> {
        let mut arguments = self.node.arguments.clone();
        match arguments.first_mut() {
            Some(first) => *first = x.argument(),
            None => refuse!("`{}` has no arguments", self.node.target),
        }
        self.once_more(arguments)
    }

    /// The call's arguments, reduced to one part each. `which` selects the part by parameter name.
    fn part_arguments(
        &mut self,
        which: &dyn Fn(&str) -> Option<ComplexPart>,
    ) -> Result<Vec<Argument>> {
        let Some(schema) = self.node.schema.clone() else {
            refuse!("the schema of `{}` is missing", self.node.target);
        };
        let given = self.node.arguments.clone();
        let mut arguments = Vec::with_capacity(given.len());
        for (parameter, argument) in schema.arguments.iter().zip(given) {
            arguments.push(match (&argument, which(&parameter.name)) {
                (Argument::ScalarType(dtype), _) if parameter.name == "dtype" => {
                    Argument::ScalarType(part_of(*dtype).unwrap_or(*dtype))
                }
                (_, Some(which)) => self.part(&parameter.name, &argument, which)?,
                _ => argument,
            });
        }
        Ok(arguments)
    }
}

/// Applies the call to each part.
fn apart(call: &mut Call<'_>) -> Results {
    let mut parts = Vec::with_capacity(2);
    for which in [ComplexPart::Real, ComplexPart::Imaginary] {
        let arguments = call.part_arguments(&|name| NUMBERS.contains(&name).then_some(which))?;
        parts.push(call.once_more(arguments)?);
    }
    let (Some(imaginary), Some(real)) = (parts.pop(), parts.pop()) else {
        refuse!("a pair must have two parts");
    };
    let pairs = real.into_iter().zip(imaginary);
    Ok(pairs.map(|(real, imaginary)| RewriteResult::Pair(Box::new([real, imaginary]))).collect())
}

/// Applies the call to the real part; the imaginary part of the result is zero.
fn of_reals(call: &mut Call<'_>) -> Results {
    let arguments =
        call.part_arguments(&|name| NUMBERS.contains(&name).then_some(ComplexPart::Real))?;
    let made = call.once_more(arguments)?;
    let [real] = made.as_slice() else { refuse!("the call must have one result") };
    let zeros = call.zeros(real)?;
    call.pair(real.clone(), zeros)
}

/// Operands of bilinear operators, by parameter name. Some operators take a list of two tensors instead.
const OPERANDS: [[&str; 2]; 7] = [
    ["self", "other"],
    ["self", "mat2"],
    ["self", "tensor"],
    ["self", "vec"],
    ["self", "vec2"],
    ["x", "y"],
    ["input", "weight"],
];

fn product(call: &mut Call<'_>) -> Results {
    let [real, imaginary] = multiplied(call, ComplexPart::Real)?;
    call.pair(real, imaginary)
}

/// Product with the conjugate of the first operand.
fn conjugated_product(call: &mut Call<'_>) -> Results {
    let [real, imaginary] = multiplied(call, ComplexPart::Imaginary)?;
    call.pair(real, imaginary)
}

/// Bilinear product of two complex operands. The imaginary part of the first operand is negated if `turned` is
/// imaginary.
fn multiplied(call: &mut Call<'_>, turned: ComplexPart) -> Result<[Tensor; 2]> {
    let is_real = |call: &Call<'_>, argument: &Argument| match argument {
        Argument::Value(id) => !is_complex_value(&call.frame.graph, *id),
        Argument::Complex(..) => false,
        _ => true,
    };
    let names = OPERANDS.into_iter().find(|names| names.iter().all(|name| call.has(name)));
    let operands: [&Argument; 2] = match (names, call.node.argument("tensors")) {
        (Some([first, second]), _) => [call.argument(first)?, call.argument(second)?],
        (None, Some(Argument::List(items))) => match items.as_slice() {
            [first, second] => [first, second],
            items => refuse!("cannot contract {} complex tensors; expected 2", items.len()),
        },
        _ => refuse!("the operands of `{}` are unknown", call.node.target),
    };
    let reals = operands.map(|operand| is_real(call, operand));
    let of = |call: &mut Call<'_>, first: ComplexPart, second: ComplexPart| {
        let is_zero = |which, is_real| which == ComplexPart::Imaginary && is_real;
        if is_zero(first, reals[0]) || is_zero(second, reals[1]) {
            return Ok(None);
        }
        let mut arguments = match names {
            Some(names) => call.part_arguments(&|name| {
                (name == names[0]).then_some(first).or((name == names[1]).then_some(second))
            })?,
            None => call.node.arguments.clone(),
        };
        if names.is_none() {
            let pair = vec![
                call.part("tensors", operands[0], first)?,
                call.part("tensors", operands[1], second)?,
            ];
            let is_list = |argument: &&mut Argument| matches!(argument, Argument::List(_));
            if let Some(list) = arguments.iter_mut().find(is_list) {
                *list = Argument::List(pair);
            }
        }
        // The bias is added only once.
        let bias = call.node.schema.as_ref().and_then(|schema| {
            schema.arguments.iter().position(|parameter| parameter.name == "bias")
        });
        if let Some(bias) = bias.and_then(|at| arguments.get_mut(at)) {
            *bias = Argument::None;
        }
        Ok::<_, LoweringError>(call.once_more(arguments)?.pop())
    };
    let (real, imaginary) = (ComplexPart::Real, ComplexPart::Imaginary);
    let plus = of(call, real, real)?;
    let minus = of(call, imaginary, imaginary)?;
    let left = of(call, imaginary, real)?;
    let right = of(call, real, imaginary)?;
    let is_turned = turned == ComplexPart::Imaginary;
    let mut real = match (plus, minus) {
        (Some(plus), Some(minus)) if is_turned => call.add(&plus, &minus)?,
        (Some(plus), Some(minus)) => call.subtract(&plus, &minus)?,
        (Some(plus), None) => plus,
        (None, _) => refuse!("a product has no real part"),
    };
    let left = match left {
        Some(left) if is_turned => Some(call.map("neg", &left)?),
        left => left,
    };
    let mut imaginary = match (left, right) {
        (Some(left), Some(right)) => call.add(&left, &right)?,
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => call.zeros(&real)?,
    };
    if call.has("bias") {
        let bias = call.both_parts("bias")?;
        // Spatial dimensions follow the channels of a convolution.
        let places = if call.node.target.to_string().contains("linear") {
            0
        } else {
            real.rank().saturating_sub(2)
        };
        for (sum, part) in [&mut real, &mut imaginary].into_iter().zip(bias) {
            let mut sizes = part.sizes.clone();
            sizes.resize(sizes.len() + places, Size::Fixed(1));
            let part = call.view(&part, sizes)?;
            *sum = call.add(sum, &part)?;
        }
    }
    Ok([real, imaginary])
}

/// For results that depend on shapes only: either part will do.
fn of_shape(call: &mut Call<'_>) -> Results {
    let mut node = call.node.clone();
    node.arguments =
        call.part_arguments(&|name| NUMBERS.contains(&name).then_some(ComplexPart::Real))?;
    let results = call.as_given(&node)?;
    call.made.push(node);
    Ok(results)
}
