use crate::infer::{Rule, Site, refuse};

pub(super) fn gru(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn lstm(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn rnn(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}
