//! The reference kernel of each operation: any shape, any element type, as MIL defines it.
//!
//! Plans use faster kernels where they have them; what those compute, these define.

mod activation;
mod broadcast;
mod constexpr;
mod control_flow;
pub(crate) mod conv;
mod elementwise;
pub(crate) mod image_resizing;
mod join;
mod linear;
mod normalization;
pub(crate) mod pool;
mod random;
mod recurrent;
mod reduction;
mod reshape;
mod scatter_gather;
mod slice;
mod suppression;
mod tensor_operation;
mod tensor_transformation;
pub(crate) mod window;

use coremill_mil::ops::OpKind;

pub(crate) use scatter_gather::Axis as GatherAxis;
pub(crate) use slice::update_in_place;

use crate::call::{Call, Results};

/// The kernel of an operation; none for those that the executor performs itself, because they run
/// blocks, or touch lists or states.
pub(crate) fn reference(kind: OpKind) -> Option<fn(&Call) -> Results> {
    Some(match kind {
        OpKind::Abs => elementwise::abs,
        OpKind::Acos => elementwise::acos,
        OpKind::Add => elementwise::add,
        OpKind::Affine => image_resizing::affine,
        OpKind::Argsort => tensor_operation::argsort,
        OpKind::Asin => elementwise::asin,
        OpKind::Atan => elementwise::atan,
        OpKind::Atanh => elementwise::atanh,
        OpKind::AvgPool => pool::avg_pool,
        OpKind::BandPart => tensor_operation::band_part,
        OpKind::BatchNorm => normalization::batch_norm,
        OpKind::BatchToSpace => tensor_transformation::batch_to_space,
        OpKind::Cast => elementwise::cast,
        OpKind::Ceil => elementwise::ceil,
        OpKind::ClampedRelu => activation::clamped_relu,
        OpKind::Classify => control_flow::classify,
        OpKind::Clip => elementwise::clip,
        OpKind::Concat => join::concat,
        OpKind::ConstexprAffineDequantize => constexpr::constexpr_affine_dequantize,
        OpKind::ConstexprBlockwiseShiftScale => constexpr::constexpr_blockwise_shift_scale,
        OpKind::ConstexprCast => constexpr::constexpr_cast,
        OpKind::ConstexprLutToDense => constexpr::constexpr_lut_to_dense,
        OpKind::ConstexprLutToSparse => constexpr::constexpr_lut_to_sparse,
        OpKind::ConstexprSparseBlockwiseShiftScale => {
            constexpr::constexpr_sparse_blockwise_shift_scale
        }
        OpKind::ConstexprSparseToDense => constexpr::constexpr_sparse_to_dense,
        OpKind::Conv => conv::conv,
        OpKind::ConvQuantized => conv::conv_quantized,
        OpKind::ConvTranspose => conv::conv_transpose,
        OpKind::Cos => elementwise::cos,
        OpKind::Cosh => elementwise::cosh,
        OpKind::Crop => image_resizing::crop,
        OpKind::CropResize => image_resizing::crop_resize,
        OpKind::Cumsum => tensor_operation::cumsum,
        OpKind::DepthToSpace => tensor_transformation::depth_to_space,
        OpKind::Dequantize => constexpr::dequantize,
        OpKind::Einsum => linear::einsum,
        OpKind::Elu => activation::elu,
        OpKind::Equal => elementwise::equal,
        OpKind::Erf => elementwise::erf,
        OpKind::Exp => elementwise::exp,
        OpKind::Exp2 => elementwise::exp2,
        OpKind::ExpandDims => reshape::expand_dims,
        OpKind::Fill => tensor_operation::fill,
        OpKind::FillLike => tensor_operation::fill_like,
        OpKind::Flatten2d => reshape::flatten2d,
        OpKind::Floor => elementwise::floor,
        OpKind::FloorDiv => elementwise::floor_div,
        OpKind::Gather => scatter_gather::gather,
        OpKind::GatherAlongAxis => scatter_gather::gather_along_axis,
        OpKind::GatherNd => scatter_gather::gather_nd,
        OpKind::Gelu => activation::gelu,
        OpKind::Greater => elementwise::greater,
        OpKind::GreaterEqual => elementwise::greater_equal,
        OpKind::Gru => recurrent::gru,
        OpKind::Identity => tensor_operation::identity,
        OpKind::InstanceNorm => normalization::instance_norm,
        OpKind::Inverse => elementwise::inverse,
        OpKind::L2Norm => normalization::l2_norm,
        OpKind::L2Pool => pool::l2_pool,
        OpKind::LayerNorm => normalization::layer_norm,
        OpKind::LeakyRelu => activation::leaky_relu,
        OpKind::Less => elementwise::less,
        OpKind::LessEqual => elementwise::less_equal,
        OpKind::Linear => linear::linear,
        OpKind::LinearActivation => activation::linear_activation,
        OpKind::LocalResponseNorm => normalization::local_response_norm,
        OpKind::Log => elementwise::log,
        OpKind::LogicalAnd => elementwise::logical_and,
        OpKind::LogicalNot => elementwise::logical_not,
        OpKind::LogicalOr => elementwise::logical_or,
        OpKind::LogicalXor => elementwise::logical_xor,
        OpKind::Lstm => recurrent::lstm,
        OpKind::Matmul => linear::matmul,
        OpKind::MaxPool => pool::max_pool,
        OpKind::Maximum => elementwise::maximum,
        OpKind::Minimum => elementwise::minimum,
        OpKind::Mod => elementwise::modulo,
        OpKind::Mul => elementwise::mul,
        OpKind::NonMaximumSuppression => tensor_operation::non_maximum_suppression,
        OpKind::NonZero => tensor_operation::non_zero,
        OpKind::NotEqual => elementwise::not_equal,
        OpKind::OneHot => tensor_operation::one_hot,
        OpKind::Pad => tensor_operation::pad,
        OpKind::PixelShuffle => tensor_transformation::pixel_shuffle,
        OpKind::PixelUnshuffle => tensor_transformation::pixel_unshuffle,
        OpKind::Pow => elementwise::pow,
        OpKind::Prelu => activation::prelu,
        OpKind::Quantize => constexpr::quantize,
        OpKind::RandomBernoulli => random::random_bernoulli,
        OpKind::RandomCategorical => random::random_categorical,
        OpKind::RandomNormal => random::random_normal,
        OpKind::RandomUniform => random::random_uniform,
        OpKind::Range1d => tensor_operation::range_1d,
        OpKind::RealDiv => elementwise::real_div,
        OpKind::ReduceArgmax => reduction::reduce_argmax,
        OpKind::ReduceArgmin => reduction::reduce_argmin,
        OpKind::ReduceL1Norm => reduction::reduce_l1_norm,
        OpKind::ReduceL2Norm => reduction::reduce_l2_norm,
        OpKind::ReduceLogSum => reduction::reduce_log_sum,
        OpKind::ReduceLogSumExp => reduction::reduce_log_sum_exp,
        OpKind::ReduceMax => reduction::reduce_max,
        OpKind::ReduceMean => reduction::reduce_mean,
        OpKind::ReduceMin => reduction::reduce_min,
        OpKind::ReduceProd => reduction::reduce_prod,
        OpKind::ReduceSum => reduction::reduce_sum,
        OpKind::ReduceSumSquare => reduction::reduce_sum_square,
        OpKind::Relu => activation::relu,
        OpKind::Relu6 => activation::relu6,
        OpKind::Resample => image_resizing::resample,
        OpKind::Reshape => reshape::reshape,
        OpKind::ReshapeLike => reshape::reshape_like,
        OpKind::Resize => image_resizing::resize,
        OpKind::ResizeBilinear => image_resizing::resize_bilinear,
        OpKind::ResizeNearestNeighbor => image_resizing::resize_nearest_neighbor,
        OpKind::Reverse => tensor_transformation::reverse,
        OpKind::ReverseSequence => tensor_transformation::reverse_sequence,
        OpKind::Rnn => recurrent::rnn,
        OpKind::Round => elementwise::round,
        OpKind::Rsqrt => elementwise::rsqrt,
        OpKind::ScaledDotProductAttention => linear::scaled_dot_product_attention,
        OpKind::ScaledTanh => activation::scaled_tanh,
        OpKind::Scatter => scatter_gather::scatter,
        OpKind::ScatterAlongAxis => scatter_gather::scatter_along_axis,
        OpKind::ScatterNd => scatter_gather::scatter_nd,
        OpKind::Select => control_flow::select,
        OpKind::Shape => tensor_operation::shape,
        OpKind::Sigmoid => activation::sigmoid,
        OpKind::SigmoidHard => activation::sigmoid_hard,
        OpKind::Sign => elementwise::sign,
        OpKind::Silu => activation::silu,
        OpKind::Sin => elementwise::sin,
        OpKind::Sinh => elementwise::sinh,
        OpKind::SliceByIndex => slice::slice_by_index,
        OpKind::SliceBySize => slice::slice_by_size,
        OpKind::SliceUpdate => slice::slice_update,
        OpKind::SlidingWindows => tensor_transformation::sliding_windows,
        OpKind::Softmax => activation::softmax,
        OpKind::Softplus => activation::softplus,
        OpKind::SoftplusParametric => activation::softplus_parametric,
        OpKind::Softsign => activation::softsign,
        OpKind::SpaceToBatch => tensor_transformation::space_to_batch,
        OpKind::SpaceToDepth => tensor_transformation::space_to_depth,
        OpKind::Split => join::split,
        OpKind::Sqrt => elementwise::sqrt,
        OpKind::Square => elementwise::square,
        OpKind::Squeeze => reshape::squeeze,
        OpKind::Stack => join::stack,
        OpKind::Sub => elementwise::sub,
        OpKind::Tan => elementwise::tan,
        OpKind::Tanh => elementwise::tanh,
        OpKind::Threshold => elementwise::threshold,
        OpKind::ThresholdedRelu => activation::thresholded_relu,
        OpKind::Tile => tensor_operation::tile,
        OpKind::Topk => tensor_operation::topk,
        OpKind::Transpose => tensor_transformation::transpose,
        OpKind::UpsampleBilinear => image_resizing::upsample_bilinear,
        OpKind::UpsampleNearestNeighbor => image_resizing::upsample_nearest_neighbor,
        OpKind::ConstSymbolic
        | OpKind::Cond
        | OpKind::Const
        | OpKind::ListGather
        | OpKind::ListLength
        | OpKind::ListRead
        | OpKind::ListScatter
        | OpKind::ListWrite
        | OpKind::MakeList
        | OpKind::ReadState
        | OpKind::WhileLoop
        | OpKind::WriteState => return None,
    })
}

/// Whether the executor performs an operation itself.
pub(crate) fn is_special(kind: OpKind) -> bool {
    reference(kind).is_none()
}
