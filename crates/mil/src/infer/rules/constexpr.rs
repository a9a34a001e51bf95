use crate::infer::{Rule, Site, refuse};

pub(super) fn constexpr_affine_dequantize(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn constexpr_blockwise_shift_scale(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn constexpr_cast(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn constexpr_lut_to_dense(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn constexpr_lut_to_sparse(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn constexpr_sparse_blockwise_shift_scale(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn constexpr_sparse_to_dense(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn dequantize(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn quantize(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}
