use crate::infer::{Rule, Site, refuse};

pub(super) fn einsum(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn linear(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn matmul(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn scaled_dot_product_attention(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}
