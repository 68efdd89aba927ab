//! What a device looks like in `/sys`: the files that Linux has for a NIC, as far as something true can be said in
//! them.

use std::{
    fmt::Display,
    fs,
    path::{Path, PathBuf},
};
use uroce::verbs::{Context, DeviceAttributes, PORT, PortAttributes};

/// What stands in for the hardware: where the device's symbolic link `device` leads. Devices without hardware are
/// below `virtual`, too.
const PARENT: &str = "/sys/devices/virtual/uroce/uroce0";

/// A file below `/sys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// With this line in it.
    Text(String),
    /// A symbolic link to here.
    Link(PathBuf),
}

/// The files of an open device, with their paths.
pub(super) fn files(context: &Context) -> anyhow::Result<Vec<(PathBuf, Entry)>> {
    let mut files = Files(Vec::new());
    let gid = context.query_gid_entry(PORT, 0)?;
    let interface = interface_name(gid.ndev_ifindex);

    let parent = Path::new(PARENT);
    files.text(parent, "uevent", "DRIVER=uroce");
    // As Linux says of a device that is near to no node in particular.
    files.text(parent, "numa_node", -1);
    if let Some(interface) = &interface {
        let link = fs::canonicalize(Path::new("/sys/class/net").join(interface))?;
        files.link(&parent.join("net"), interface, link);
    }

    let device = parent.join("infiniband/uroce0");
    files.link("/sys/class/infiniband".as_ref(), "uroce0", "../../devices/virtual/uroce/uroce0/infiniband/uroce0");
    files.link(&device, "device", "../../../uroce0");
    files.link(&device, "subsystem", "../../../../../../class/infiniband");
    device_files(&mut files, &device, &context.query_device());
    if let Some(interface) = &interface {
        // rxe has this file.
        files.text(&device, "parent", interface);
    }

    let port = device.join("ports").join(PORT.to_string());
    port_files(&mut files, &port, &context.query_port(PORT)?);
    files.text(&port.join("pkeys"), "0", context.query_pkey(PORT, 0)?);
    files.text(&port.join("gids"), "0", groups(&gid.gid.0));
    files.text(&port.join("gid_attrs/types"), "0", "RoCE v2");
    if let Some(interface) = &interface {
        files.text(&port.join("gid_attrs/ndevs"), "0", interface);
    }

    let uverbs = parent.join("infiniband_verbs/uverbs0");
    let class = Path::new("/sys/class/infiniband_verbs");
    files.link(class, "uverbs0", "../../devices/virtual/uroce/uroce0/infiniband_verbs/uverbs0");
    files.text(class, "abi_version", 6);
    files.link(&uverbs, "device", "../../../uroce0");
    files.link(&uverbs, "subsystem", "../../../../../../class/infiniband_verbs");
    files.text(&uverbs, "uevent", "DEVNAME=infiniband/uverbs0");
    files.text(&uverbs, "ibdev", "uroce0");
    files.text(&uverbs, "abi_version", 1);
    // That of the null device, which /dev/infiniband/uverbs0 is.
    files.text(&uverbs, "dev", "1:3");
    Ok(files.0)
}

fn device_files(files: &mut Files, folder: &Path, device: &DeviceAttributes) {
    files.text(folder, "uevent", "NAME=uroce0");
    files.text(folder, "node_type", "1: CA");
    files.text(folder, "node_desc", "uroce0");
    files.text(folder, "node_guid", groups(&device.node_guid.to_be_bytes()));
    files.text(folder, "sys_image_guid", groups(&device.sys_image_guid.to_be_bytes()));
    files.text(folder, "fw_ver", device.fw_ver);
    files.text(folder, "hw_rev", device.hw_ver);
    files.text(folder, "hca_type", "uroce");
    files.text(folder, "board_id", "uroce");
}

fn port_files(files: &mut Files, folder: &Path, port: &PortAttributes) {
    let state = format!("{:?}", port.state).to_uppercase();
    files.text(folder, "state", format_args!("{}: {state}", port.state as u8));
    files.text(folder, "phys_state", format_args!("{}: LinkUp", port.phys_state));
    files.text(folder, "rate", port.rate);
    files.text(folder, "link_layer", "Ethernet");
    files.text(folder, "cap_mask", format_args!("{:#010x}", port.port_cap_flags));
    // Ethernet has neither local identifiers nor a subnet manager; Linux says so like this.
    files.text(folder, "lid", "0x0");
    files.text(folder, "lid_mask_count", 0);
    files.text(folder, "sm_lid", "0x0");
    files.text(folder, "sm_sl", 0);
}

/// A list of files in the making.
struct Files(Vec<(PathBuf, Entry)>);

impl Files {
    fn text(&mut self, folder: &Path, name: &str, text: impl Display) {
        self.0.push((folder.join(name), Entry::Text(text.to_string())));
    }

    fn link(&mut self, folder: &Path, name: &str, target: impl Into<PathBuf>) {
        self.0.push((folder.join(name), Entry::Link(target.into())));
    }
}

/// The name of a network interface.
fn interface_name(index: u32) -> Option<String> {
    let interfaces = fs::read_dir("/sys/class/net").ok()?;
    interfaces.flatten().find_map(|interface| {
        let number = fs::read_to_string(interface.path().join("ifindex")).ok()?;
        (number.trim().parse() == Ok(index)).then(|| interface.file_name().to_string_lossy().into_owned())
    })
}

/// Bytes in groups of four hexadecimal digits, as sysfs shows GUIDs and GIDs.
fn groups(bytes: &[u8]) -> String {
    let groups: Vec<String> = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashMap, path::Component};
    use uroce::verbs::Device;

    #[test]
    fn the_files_say_what_the_device_says() {
        let device = Device::builder().build().unwrap();
        let context = device.open().unwrap();
        let files: HashMap<PathBuf, Entry> = files(&context).unwrap().into_iter().collect();
        let text = |path: &str| match &files[&Path::new(PARENT).join(path)] {
            Entry::Text(text) => text.clone(),
            Entry::Link(target) => panic!("a link to {}", target.display()),
        };
        let port = |file: &str| text(&format!("infiniband/uroce0/ports/1/{file}"));
        assert_eq!(port("state"), "4: ACTIVE");
        assert_eq!(port("rate"), "25 Gb/sec (1X EDR)");
        assert_eq!(port("gid_attrs/types/0"), "RoCE v2");
        assert_eq!(port("gid_attrs/ndevs/0"), "lo");
        assert_eq!(port("pkeys/0"), "0xffff");
        assert!(port("gids/0").starts_with("0000:0000:0000:0000:0000:ffff:7f00:00"), "{}", port("gids/0"));
        assert_eq!(text("infiniband_verbs/uverbs0/ibdev"), device.name());
    }

    #[test]
    fn links_lead_to_the_devices_folders() {
        let context = Device::builder().build().unwrap().open().unwrap();
        let files = files(&context).unwrap();
        let is_folder = |folder: &Path| files.iter().any(|(file, _)| file.starts_with(folder) && file != folder);
        for (path, entry) in &files {
            if let Entry::Link(target) = entry
                && target.is_relative()
            {
                let mut resolved = path.parent().unwrap().to_owned();
                for part in target.components() {
                    match part {
                        Component::ParentDir => assert!(resolved.pop()),
                        part => resolved.push(part),
                    }
                }
                assert!(is_folder(&resolved), "{} -> {}", path.display(), resolved.display());
            }
        }
    }
}
