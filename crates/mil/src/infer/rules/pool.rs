use crate::infer::{Rule, Site, refuse};

pub(super) fn avg_pool(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn l2_pool(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn max_pool(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}
