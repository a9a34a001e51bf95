use crate::ops::Gelu;
use crate::tensor::Tensor;

/// An elementwise function.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are torch's")]
#[non_exhaustive]
pub enum Activation {
    Identity,
    Relu,
    Relu6,
    /// `relu(x)²`.
    ReluSquared,
    LeakyRelu(f32),
    Elu(f32),
    Celu(f32),
    Selu,
    Gelu,
    /// The `tanh` approximation of Gelu.
    GeluTanh,
    /// `x · sigmoid(1.702 x)`.
    QuickGelu,
    Silu,
    Sigmoid,
    LogSigmoid,
    HardSigmoid,
    HardSwish,
    HardTanh,
    Tanh,
    Mish,
    Softplus,
    Softsign,
    Tanhshrink,
}

impl Activation {
    /// Applies the function.
    #[track_caller]
    pub fn apply(self, x: Tensor<'_>) -> Tensor<'_> {
        match self {
            Activation::Identity => x,
            Activation::Relu => x.relu(),
            Activation::Relu6 => x.relu6(),
            Activation::ReluSquared => x.relu().square(),
            Activation::LeakyRelu(slope) => x.leaky_relu(slope),
            Activation::Elu(alpha) => x.elu(alpha),
            Activation::Celu(alpha) => (x / alpha).elu(1.0) * alpha,
            Activation::Selu => x.elu(1.673_263_2) * 1.050_701,
            Activation::Gelu => x.gelu(Gelu::new().mode("EXACT")),
            Activation::GeluTanh => x.gelu(Gelu::new().mode("TANH_APPROXIMATION")),
            Activation::QuickGelu => x * (x * 1.702).sigmoid(),
            Activation::Silu => x.silu(),
            Activation::Sigmoid => x.sigmoid(),
            Activation::LogSigmoid => -((-x).softplus()),
            Activation::HardSigmoid => x.sigmoid_hard(1.0 / 6.0, 0.5),
            Activation::HardSwish => x * x.sigmoid_hard(1.0 / 6.0, 0.5),
            Activation::HardTanh => x.clip(-1.0, 1.0),
            Activation::Tanh => x.tanh(),
            Activation::Mish => x * x.softplus().tanh(),
            Activation::Softplus => x.softplus(),
            Activation::Softsign => x.softsign(),
            Activation::Tanhshrink => x - x.tanh(),
        }
    }
}
