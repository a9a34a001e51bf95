use crate::infer::{Rule, Site, refuse};

pub(super) fn conv(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn conv_quantized(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn conv_transpose(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}
