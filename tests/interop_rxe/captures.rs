//! The captures of one case, at three points between uroce and rxe: what lies between two of them shows.

use crate::{
    compare::{Point, compare},
    report::Packets,
};
use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

/// Where the packets of a case are written to.
#[derive(Clone)]
pub(crate) struct Captures {
    /// Between uroce and the faults of the case. Programs have neither.
    pub(crate) above_faults: PathBuf,
    /// Between the faults and the wire.
    pub(crate) link: PathBuf,
    /// Between the wire and rxe: what the guest's network card received and sent.
    pub(crate) card: PathBuf,
}

impl Captures {
    pub(crate) fn of(folder: &Path, case: &str) -> Self {
        let file = |ending: &str| folder.join(format!("{}.{ending}", case.replace(['/', ' '], "_")));
        Self { above_faults: file("above-faults.pcapng"), link: file("pcapng"), card: file("guest.pcap") }
    }

    /// Gigabytes of them otherwise.
    pub(crate) fn delete(&self) {
        for path in [&self.above_faults, &self.link, &self.card] {
            let _ = fs::remove_file(path);
        }
    }

    /// What the wire, and nobody else, did to packets.
    pub(crate) fn wire_differs(&self, ours: IpAddr) -> Option<String> {
        let [link, card] = [&self.link, &self.card].map(|path| Packets::read(path, ours));
        compare(Point("uroce's link", &link), Point("rxe's card", &card))
    }

    /// Where a case that failed is to be looked at: the files, where they part, and what an undisturbed exchange does not
    /// have.
    pub(crate) fn explain(&self, ours: IpAddr) -> String {
        let mut said = String::from("\n    captures:");
        let is_there = |path: &Path| fs::metadata(path).is_ok_and(|file| file.len() > 0);
        let points = [
            (&self.above_faults, "uroce, above the case's faults"),
            (&self.link, "uroce's link, below them"),
            (&self.card, "rxe's network card"),
        ];
        for (path, point) in points.iter().filter(|(path, _)| is_there(path)) {
            said += &format!("\n      {} ({point})", path.display());
        }
        if !is_there(&self.link) {
            return said;
        }
        let link = Packets::read(&self.link, ours);
        if is_there(&self.above_faults) {
            let above = Packets::read(&self.above_faults, ours);
            let faults = compare(Point("uroce", &above), Point("its link", &link));
            said += "\n    the case's own faults: ";
            said += faults.as_deref().unwrap_or("they touched nothing");
        }
        said += "\n    the wire: ";
        said += self.wire_differs(ours).as_deref().unwrap_or("every packet arrived as it was sent");
        said += &match link.first_oddity() {
            Some(oddity) => format!("\n    first packet on it that an undisturbed exchange does not have: {oddity}"),
            None => {
                format!("\n    nothing on it that an undisturbed exchange does not have; the last were{}", link.last())
            }
        };
        said
    }
}
