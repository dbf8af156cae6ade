//! Abandoned pools: closed by force while transfers were in progress ([`crate::pools::abandon`]), and kept
//! until these end.

use vdev::Left;

/// A pool that was abandoned.
pub struct Abandoned {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    pub(crate) devices: Vec<Left>,
}

impl Abandoned {
    pub(crate) fn busy(&self) -> impl Iterator<Item = &str> {
        let busy = self.devices.iter().filter(|d| d.is_busy());
        busy.map(|d| d.path.as_str())
    }

    /// Why its devices cannot be used.
    pub fn refusal(&self) -> String {
        let devices: Vec<&str> = self.busy().collect();
        format!(
            "pool '{}' was exported by force while its devices did not answer, and transfers begun \
             before are still under way on {}",
            self.name,
            devices.join(", ")
        )
    }
}
