use crate::infer::{Rule, Site, refuse};

pub(super) fn random_bernoulli(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn random_categorical(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn random_normal(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn random_uniform(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}
