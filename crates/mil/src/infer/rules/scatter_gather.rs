use crate::infer::{Rule, Site, refuse};

pub(super) fn gather(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn gather_along_axis(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn gather_nd(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn scatter(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn scatter_along_axis(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn scatter_nd(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}
