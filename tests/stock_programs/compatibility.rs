//! docs/compatibility.md: what ran, and what was seen. The tests write it when `UROCE_WRITE_COMPATIBILITY` is set, and
//! otherwise hold it to what they saw.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

/// Sections are rewritten by several tests of one process.
static FILE: Mutex<()> = Mutex::new(());

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility.md")
}

/// What the page says of one set of programs.
pub(crate) struct Section {
    /// As in the comments that begin and end it.
    pub(crate) name: &'static str,
    /// The Debian packages it is about, separated by blanks.
    pub(crate) packages: &'static str,
    /// Markdown.
    pub(crate) body: String,
}

impl Section {
    /// Writes it into the page, or fails when the page says something else. Versions may differ: the page names those
    /// of its writer.
    pub(crate) fn publish(&self) {
        let _only = FILE.lock().unwrap_or_else(PoisonError::into_inner);
        let page = fs::read_to_string(path()).unwrap();
        let published = self.find(&page);
        if self.is_to_be_written() {
            let written = format!("{}\n{}", self.versions(), self.body);
            let at = published.as_ptr() as usize - page.as_ptr() as usize;
            fs::write(path(), [&page[..at], &written, &page[at + published.len()..]].concat()).unwrap();
            return;
        }
        let said = published.split_once("\n\n").map_or("", |(_versions, body)| body);
        assert!(
            said == self.body,
            "docs/compatibility.md says something else of {}; with {WRITE}=1 this test writes it\n{}",
            self.name,
            difference(said, &self.body)
        );
    }

    /// Whether this run writes the page rather than being held to it.
    pub(crate) fn is_to_be_written(&self) -> bool {
        env::var_os(WRITE).is_some()
    }

    /// What the page says: versions, then the body.
    pub(crate) fn published(&self) -> String {
        let _only = FILE.lock().unwrap_or_else(PoisonError::into_inner);
        self.find(&fs::read_to_string(path()).unwrap()).to_owned()
    }

    fn find<'a>(&self, page: &'a str) -> &'a str {
        let (_before, rest) = page.split_once(&self.begin()).expect("the page has this section");
        rest.split_once(END).expect("the section ends").0
    }

    /// The first line of a section.
    pub(crate) fn versions(&self) -> String {
        let packages = self.packages.split_whitespace();
        let versions: Vec<String> = packages.map(|package| format!("{package} {}", version(package))).collect();
        format!("Packages: {}\n", versions.join(", "))
    }

    fn begin(&self) -> String {
        format!("<!-- {}: written by tests/stock_programs -->\n", self.name)
    }
}

/// Set to anything, it has the tests write the page.
const WRITE: &str = "UROCE_WRITE_COMPATIBILITY";
const END: &str = "<!-- end -->";

/// The lines that only one side has.
fn difference(said: &str, seen: &str) -> String {
    let only = |sign, these: &str, those: &str| {
        these
            .lines()
            .filter(|line| those.lines().all(|other| other != *line))
            .fold(String::new(), |text, line| format!("{text}{sign} {line}\n"))
    };
    only('-', said, seen) + &only('+', seen, said)
}

fn version(package: &str) -> String {
    let output = Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => "of unknown version".to_owned(),
    }
}
