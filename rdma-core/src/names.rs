//! Codes and what they are called, rates, and files of sysfs: what needs no device. The texts are libibverbs', for
//! people and scripts look for them.

use crate::entry::{self, Refusal};
use libc::{c_char, c_int, c_uint, c_void, size_t};
use std::{
    env,
    ffi::{CStr, CString, OsStr},
    fs::File,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::Path,
    ptr, slice,
    sync::OnceLock,
};

const UNKNOWN: &CStr = c"unknown";

fn name(names: &[&'static CStr], code: c_int) -> *const c_char {
    usize::try_from(code).ok().and_then(|code| names.get(code)).unwrap_or(&UNKNOWN).as_ptr()
}

pub(crate) extern "C" fn node_type_str(node_type: c_int) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        UNKNOWN,
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(&NAMES, node_type)
}

pub(crate) extern "C" fn port_state_str(state: c_int) -> *const c_char {
    name(&[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"], state)
}

pub(crate) extern "C" fn event_type_str(event: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    name(&NAMES, event)
}

pub(crate) extern "C" fn wc_status_str(status: c_int) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(&NAMES, status)
}

pub(crate) extern "C" fn wr_opcode_str(opcode: c_int) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        UNKNOWN,
        UNKNOWN,
        c"flush",
        c"atomic-write",
    ];
    name(&NAMES, opcode)
}

pub(crate) extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ];
    match usize::try_from(event).ok().and_then(|event| NAMES.get(event)) {
        Some(name) => name.as_ptr(),
        None => c"UNKNOWN EVENT".as_ptr(),
    }
}

/// `enum ibv_rate`: its code, the multiple of 2.5 Gbit/s where it is one, and Mbit/s.
const RATES: [(c_uint, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

pub(crate) extern "C" fn rate_to_mult(rate: c_uint) -> c_int {
    RATES.into_iter().find(|&(code, ..)| code == rate).and_then(|(_, multiple, _)| multiple).unwrap_or(-1)
}

/// 0 (`IBV_RATE_MAX`) where there is no such rate.
pub(crate) extern "C" fn mult_to_rate(multiple: c_int) -> c_uint {
    RATES.into_iter().find(|&(_, known, _)| known == Some(multiple)).map_or(0, |(code, ..)| code)
}

pub(crate) extern "C" fn rate_to_mbps(rate: c_uint) -> c_int {
    RATES.into_iter().find(|&(code, ..)| code == rate).map_or(-1, |(.., megabits)| megabits)
}

/// 0 (`IBV_RATE_MAX`) where there is no such rate.
pub(crate) extern "C" fn mbps_to_rate(megabits: c_int) -> c_uint {
    RATES.into_iter().find(|&(.., known)| known == megabits).map_or(0, |(code, ..)| code)
}

/// Where sysfs is: `SYSFS_PATH`, unless the program runs with somebody else's rights, or /sys.
pub(crate) extern "C" fn get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        // SAFETY: neither can fail, and neither has any precondition.
        let is_itself = unsafe { libc::getuid() == libc::geteuid() };
        let named = env::var_os("SYSFS_PATH").filter(|_| is_itself);
        let path = named.as_deref().map_or(&b"/sys"[..], OsStrExt::as_bytes);
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        CString::new(&path[..end]).unwrap_or_default()
    });
    path.as_ptr()
}

/// Reads a file into a buffer, as a C string without its line's end. Returns its length.
pub(crate) unsafe extern "C" fn read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: size_t,
) -> c_int {
    entry::number("ibv_read_sysfs_file", || {
        // SAFETY: the program passes C strings.
        let (folder, file) = unsafe { (CStr::from_ptr(folder), CStr::from_ptr(file)) };
        let path = Path::new(OsStr::from_bytes(folder.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
        // SAFETY: the buffer is the program's, has so many bytes, and any bytes will do.
        let buffer = unsafe {
            ptr::write_bytes(buffer, 0, size);
            slice::from_raw_parts_mut(buffer.cast::<u8>(), size)
        };
        let refusal =
            |error: std::io::Error| Refusal::new(error.raw_os_error().unwrap_or(libc::EIO), "the file cannot be read");
        let mut length = File::open(path).and_then(|mut file| file.read(buffer)).map_err(refusal)?;
        if length > 0 && buffer[length - 1] == b'\n' {
            length -= 1;
            buffer[length] = 0;
        } else if length == buffer.len() {
            return Err(Refusal::invalid("the file is longer than the buffer"));
        }
        Ok(length as c_int)
    })
}

/// There is nothing to prepare: a child that opens the device anew has one of its own, and the parent's memory stays
/// where the parent's device finds it.
pub(crate) extern "C" fn fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`.
pub(crate) extern "C" fn is_fork_initialized() -> c_int {
    2
}

/// Memory need not be kept from a child.
pub(crate) extern "C" fn fork_range(_base: *mut c_void, _size: size_t) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: *const c_char) -> &'static str {
        // SAFETY: names are string constants.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap()
    }

    #[test]
    fn names_end_where_codes_do() {
        assert_eq!(text(wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(text(event_type_str(16)), "last WQE reached");
        assert_eq!(text(wr_opcode_str(15)), "atomic-write");
        for name in [wc_status_str(24), wc_status_str(-1), event_type_str(20), node_type_str(0), port_state_str(6)] {
            assert_eq!(text(name), "unknown");
        }
    }

    #[test]
    fn rates_convert_both_ways() {
        for (code, multiple, megabits) in RATES {
            assert_eq!((rate_to_mbps(code), mbps_to_rate(megabits)), (megabits, code));
            assert_eq!(rate_to_mult(code), multiple.unwrap_or(-1));
            if let Some(multiple) = multiple {
                assert_eq!(mult_to_rate(multiple), code);
            }
        }
        assert_eq!((rate_to_mult(1), rate_to_mbps(1), mult_to_rate(3), mbps_to_rate(1)), (-1, -1, 0, 0));
    }

    #[test]
    fn files_are_read_as_strings_that_fit() {
        let folder = env::temp_dir().join(format!("uroce-names-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("state"), "4: ACTIVE\n").unwrap();
        let folder_name = CString::new(folder.as_os_str().as_bytes()).unwrap();
        let read = |buffer: &mut [u8]| {
            // SAFETY: both names are C strings, and the buffer is as long as it says.
            unsafe {
                read_sysfs_file(folder_name.as_ptr(), c"state".as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
            }
        };
        let mut buffer = [b'x'; 16];
        assert_eq!(read(&mut buffer), 9);
        assert_eq!(CStr::from_bytes_until_nul(&buffer).unwrap().to_str(), Ok("4: ACTIVE"));
        assert_eq!(read(&mut [0; 4]), -1);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
