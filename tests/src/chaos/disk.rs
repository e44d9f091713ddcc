//! The disk of a node: a file system of its own, so that it can be full, and frozen for a while as a disk that stalls.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{must, output, succeeds};

/// Room for a node's log and state, and little more.
const SIZE: &str = "256M";

/// A mounted image.
#[derive(Debug)]
pub(super) struct Disk {
    image: PathBuf,
    mount: PathBuf,
}

impl Disk {
    /// A disk below `home`. Its mount point is the data directory, so the node's log stays outside of it.
    pub(super) fn new(home: &Path) -> Self {
        let (image, mount) = (home.join("disk.img"), home.join("data"));
        fs::create_dir_all(&mount).expect("a directory");
        let disk = Self { image, mount };
        let file = disk.image.to_string_lossy();
        must("fallocate", &["-l", SIZE, &file]);
        // No blocks are reserved for root, as whom the node runs.
        must("mkfs.ext4", &["-q", "-m", "0", "-E", "nodiscard", &file]);
        must("mount", &["-o", "loop", &file, &disk.path()]);
        let _ = fs::remove_dir(disk.mount.join("lost+found"));
        drop(file);
        disk
    }

    pub(super) fn dir(&self) -> &Path {
        &self.mount
    }

    fn path(&self) -> String {
        self.mount.to_string_lossy().into_owned()
    }

    fn ballast(&self) -> PathBuf {
        self.mount.join("ballast")
    }

    /// Takes all room that is left.
    pub(super) fn fill(&self) {
        let free = output("df", &["--output=avail", "-B1", &self.path()]);
        let free = free.lines().nth(1).unwrap_or("0").trim().to_owned();
        let ballast = self.ballast().to_string_lossy().into_owned();
        // Metadata of the file itself may need the last blocks: it takes what it gets.
        succeeds("fallocate", &["-l", &free, &ballast]);
        let rest = output("df", &["--output=avail", "-B1", &self.path()]);
        let rest: u64 = rest.lines().nth(1).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        if rest > 65_536 {
            let of = format!("of={ballast}.rest");
            succeeds("dd", &["if=/dev/zero", &of, "bs=64k"]);
        }
    }

    /// Gives the room back.
    pub(super) fn empty(&self) {
        let _ = fs::remove_file(self.ballast());
        let _ = fs::remove_file(self.mount.join("ballast.rest"));
    }

    /// Stalls every write and fsync for a while.
    pub(super) fn stall(&mut self, time: Duration) {
        succeeds("fsfreeze", &["-f", &self.path()]);
        std::thread::sleep(time);
        self.thaw();
    }

    pub(super) fn thaw(&mut self) {
        succeeds("fsfreeze", &["-u", &self.path()]);
    }

    /// Removes it; `keep`: what is on it is copied beside it first.
    pub(super) fn unmount(&mut self, keep: bool) {
        self.thaw();
        self.empty();
        if keep {
            let kept = self.mount.with_file_name("kept");
            succeeds("cp", &["-a", &self.path(), &kept.to_string_lossy()]);
            let _ = self.mount.ancestors().nth(2).map(|root| fs::write(root.join("kept"), ""));
        }
        if !succeeds("umount", &[&self.path()]) {
            succeeds("umount", &["-l", &self.path()]);
        }
        let _ = fs::remove_file(&self.image);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.image.exists() {
            self.unmount(false);
        }
    }
}
