use crate::infer::{Outcome, Rule, Site, refuse};

pub(super) fn constant_symbolic(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn classify(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn cond(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn constant(site: &Site) -> Rule {
    match site.op().attributes.get("val") {
        Some(value) => Ok(vec![Outcome::of_constant(value)]),
        None => refuse!("states no value; it must have the attribute `val`"),
    }
}

pub(super) fn list_gather(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn list_length(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn list_read(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn list_scatter(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn list_write(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn make_list(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn read_state(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn select(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn while_loop(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}

pub(super) fn write_state(site: &Site) -> Rule {
    refuse!("`{}` has no rule yet", site.name());
}
