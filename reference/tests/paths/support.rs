//! What is checked at every call of a site, and weights out of nothing.

use std::collections::BTreeSet;

use reference::paths::{Config, Weights};
use reference::sites::When;
use reference::{Choice, Numerics, Real, Site, SiteInfo, SiteKind, Tensor};

/// Holds every call to the table of sites.
pub struct Checked<'a> {
    config: &'a dyn Config,
    sites: &'a [SiteInfo],
    when: When,
    /// Sites that were passed, with their layers.
    pub seen: BTreeSet<(&'static str, Option<usize>)>,
    /// What the table does not say.
    pub wrong: Vec<String>,
}

impl<'a> Checked<'a> {
    pub fn new(config: &'a dyn Config, sites: &'a [SiteInfo], when: When) -> Self {
        let (seen, wrong) = (BTreeSet::new(), Vec::new());
        Self {
            config,
            sites,
            when,
            seen,
            wrong,
        }
    }

    fn call(&mut self, site: &Site, chosen: bool, shape: &[usize]) {
        self.seen.insert((site.name, site.layer));
        let Some(info) = self.sites.iter().find(|info| info.name == site.name) else {
            return self.wrong.push(format!("'{site}' is not listed"));
        };
        let cols = self.config.cols(info);
        let checks = [
            (self.config.passes(info, site.layer), "is not said to be in this layer"),
            (info.when == self.when, "is passed at another time"),
            (matches!(info.kind, SiteKind::Choice(_)) == chosen, "is of another kind"),
            (shape.last() == Some(&cols), "has other columns"),
            (shape.len() == info.dims.len(), "has other dimensions"),
        ];
        let failed = checks.iter().filter(|(right, _)| !right);
        self.wrong.extend(failed.map(|(_, what)| format!("'{site}' {what}")));
    }

    /// Asserts that nothing was wrong, and that all the sites of that time have passed where they are said to.
    pub fn finish(self) {
        assert_eq!(self.wrong, Vec::<String>::new());
        let listed = self.config.places().into_iter();
        let listed = listed.filter(|(site, _)| site.when == self.when);
        assert_eq!(self.seen, listed.map(|(site, layer)| (site.name, layer)).collect());
    }
}

impl<T: Real> Numerics<T> for Checked<'_> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<T>) {
        self.call(site, false, &tensor.shape);
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<T>) {
        self.call(site, true, &[choice.rows(), choice.k]);
    }

    fn wants(&self, _: &Site) -> bool {
        true
    }
}

/// Numbers between −½ and ½ that depend on the name of the tensor.
pub fn numbers(name: &str, len: usize) -> Vec<f32> {
    let mut seed = name.bytes().fold(7u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let mut next = || {
        seed = seed
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        ((seed ^ (seed >> 33)) >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..len).map(|_| next()).collect()
}

pub fn tensor<T: Real>(name: &str, shape: &[usize]) -> Tensor<T> {
    let values = numbers(name, shape.iter().product()).into_iter();
    Tensor::new(shape, values.map(|x| T::from_f64(x.into())).collect())
}

/// Weights of such numbers.
pub struct Drawn;

impl Weights for Drawn {
    type Error = String;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        Ok(numbers(name, shape.iter().product()))
    }

    fn integers(&mut self, name: &str, _: &[usize]) -> Result<Vec<u32>, String> {
        Err(format!("'{name}' is no table of indices"))
    }
}
