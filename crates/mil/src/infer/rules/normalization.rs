use crate::infer::{Rule, Site, refuse};

pub(super) fn batch_norm(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn instance_norm(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn l2_norm(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn layer_norm(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn local_response_norm(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}
