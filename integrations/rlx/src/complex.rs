//! Complex numbers: floats with a last axis of real and imaginary part.

use coremill_graph::{Error, Tensor, ops};
use rlx_ir::Op;
use rlx_ir::op::{Activation, BinaryOp, ReduceOp};

use crate::element::is_complex;
use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    let is_result = is_complex(site.node.shape.dtype());
    let operand = |at: usize| site.declared(at).is_some_and(is_complex);
    if !is_result && !(0..site.node.inputs.len()).any(operand) {
        return Ok(None);
    }
    let number = |at: usize| Ok::<_, Error>(Number::of(site.arg(at)?, operand(at)));
    Ok(Some(match &site.node.op {
        Op::Constant { data } => {
            let dtype = match site.node.shape.dtype() {
                rlx_ir::DType::C64 => coremill_graph::DType::Fp32,
                _ => coremill_graph::DType::Fp64,
            };
            site.graph.floats(site.shape()?, &site.numbers(dtype, data)?)
        }
        Op::Binary(op) => {
            let (x, y) = (number(0)?, number(1)?);
            match op {
                BinaryOp::Add => Number { re: x.re + y.re, im: x.im + y.im },
                BinaryOp::Sub => Number { re: x.re - y.re, im: x.im - y.im },
                BinaryOp::Mul => x.times(y),
                BinaryOp::Div => {
                    let product = x.times(y.conjugate());
                    let size = y.square();
                    Number { re: product.re / size, im: product.im / size }
                }
                other => {
                    return site.refuse(format!(
                        "applies `{other:?}`, which is not defined for complex numbers"
                    ));
                }
            }
            .joined()
        }
        Op::Activation(activation) => {
            let x = number(0)?;
            match activation {
                Activation::Neg => Number { re: x.re * -1.0, im: x.im * -1.0 },
                Activation::Exp => Number::polar(x.re.exp(), x.im),
                Activation::Log => {
                    let log = |x: Tensor<'g>| x.log(ops::Log::new().epsilon(0.0));
                    Number { re: log(x.square()) * 0.5, im: x.angle() }
                }
                Activation::Sqrt => Number::polar(x.square().sqrt().sqrt(), x.angle() * 0.5),
                other => {
                    return site.refuse(format!(
                        "applies `{other:?}`, which is not supported for complex numbers"
                    ));
                }
            }
            .joined()
        }
        Op::Conjugate => number(0)?.conjugate().joined(),
        Op::ComplexNormSq => number(0)?.square(),
        Op::ComplexNormSqBackward => {
            let (x, slope) = (number(0)?, site.arg(1)?);
            Number { re: x.re * slope, im: x.im * slope }.joined()
        }
        Op::Cast { .. } => match (operand(0), is_result) {
            (true, false) => number(0)?.re,
            _ => number(0)?.joined(),
        },
        Op::Transpose { perm } => {
            let mut perm = perm.clone();
            perm.push(perm.len());
            site.arg(0)?.transpose(perm)
        }
        Op::Reduce { op: ReduceOp::Sum, axes, keep_dim } => site.arg(0)?.sum(axes, *keep_dim),
        Op::Reduce { op: ReduceOp::Mean, axes, keep_dim } => site.arg(0)?.mean(axes, *keep_dim),
        Op::MatMul => {
            let (x, y) = (number(0)?, number(1)?);
            Number { re: x.re.dot(y.re) - x.im.dot(y.im), im: x.re.dot(y.im) + x.im.dot(y.re) }
                .joined()
        }
        // These operations move whole numbers along axes counted from the front.
        Op::StopGradient
        | Op::Reshape { .. }
        | Op::Narrow { .. }
        | Op::Slice { .. }
        | Op::Concat { .. }
        | Op::Expand { .. }
        | Op::Gather { .. }
        | Op::Reverse { .. }
        | Op::Roll { .. }
        | Op::Fft { .. } => return Ok(None),
        _ => {
            return site
                .refuse("is not supported for complex numbers: pass real and imaginary parts");
        }
    }))
}

struct Number<'g> {
    re: Tensor<'g>,
    im: Tensor<'g>,
}

impl<'g> Number<'g> {
    fn of(x: Tensor<'g>, complex: bool) -> Number<'g> {
        match complex {
            true => Number { re: x.at(-1, 0), im: x.at(-1, 1) },
            false => Number { re: x, im: x * 0.0 },
        }
    }

    fn polar(size: Tensor<'g>, angle: Tensor<'g>) -> Number<'g> {
        Number { re: size * angle.cos(), im: size * angle.sin() }
    }

    fn times(&self, other: Number<'g>) -> Number<'g> {
        Number {
            re: self.re * other.re - self.im * other.im,
            im: self.re * other.im + self.im * other.re,
        }
    }

    fn conjugate(&self) -> Number<'g> {
        Number { re: self.re, im: self.im * -1.0 }
    }

    fn square(&self) -> Tensor<'g> {
        self.re.square() + self.im.square()
    }

    fn angle(&self) -> Tensor<'g> {
        crate::arithmetic::angle(self.im, self.re)
    }

    fn joined(self) -> Tensor<'g> {
        self.re.graph().stack([self.re, self.im], -1)
    }
}
