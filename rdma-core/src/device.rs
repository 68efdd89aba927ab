//! The device list, and opening what is in it.
//!
//! There is one device. It is opened (its address bound, its thread started) when a program first asks for the list,
//! and closed when neither a list nor a context is left. Should the program ask again, it gets the same address if
//! that is still free: peers may have been told.

use crate::{
    context::{Context, ContextPtr},
    entry::{self, Refusal, Result},
    fork::{self, Birth},
    types::{_ibv_device_ops, ibv_context, ibv_device, verbs_device},
};
use libc::{c_char, c_int};
use std::{
    cell::RefCell,
    io::{self, Write},
    mem::{self, ManuallyDrop},
    net::IpAddr,
    ptr,
    sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak},
};
use uroce::{settings::Settings, verbs::Device};

const NODE_CA: c_int = 1;
const TRANSPORT_IB: c_int = 0;

/// What `struct ibv_device *` points to: as much as rdma-core has there, and our own behind it.
#[repr(C)]
pub(crate) struct DeviceBlock {
    verbs: verbs_device,
    device: Device,
    birth: Birth,
}

// SAFETY: the raw pointers in it are all null, and nothing in it changes.
unsafe impl Send for DeviceBlock {}
// SAFETY: as above.
unsafe impl Sync for DeviceBlock {}

impl DeviceBlock {
    fn new(device: Device) -> Self {
        let header = ibv_device {
            ops: _ibv_device_ops { dummy: [None; 2] },
            node_type: NODE_CA,
            transport_type: TRANSPORT_IB,
            name: c_chars(device.name()),
            dev_name: c_chars("uverbs0"),
            dev_path: c_chars("/sys/class/infiniband_verbs/uverbs0"),
            ibdev_path: c_chars(&format!("/sys/class/infiniband/{}", device.name())),
        };
        let verbs = verbs_device {
            device: header,
            ops: ptr::null(),
            refcount: 1,
            entry: [ptr::null_mut(); 2],
            sysfs: ptr::null_mut(),
            core_support: 0,
        };
        Self { verbs, device, birth: Birth::now() }
    }
}

/// A text as a C string in a field of fixed length, which cuts it off.
pub(crate) fn c_chars<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
    let mut field = [0; LENGTH];
    for (to, from) in field[..LENGTH - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    field
}

/// What the process remembers of its device.
struct Registry {
    /// The device, while a list or a context holds it.
    current: Weak<DeviceBlock>,
    /// Where it was the last time.
    address: Option<IpAddr>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { current: Weak::new(), address: None });

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The registry, while this thread forks.
    static HELD: RefCell<Option<MutexGuard<'static, Registry>>> = const { RefCell::new(None) };
}

/// Keeps the registry from changing until [`release_registry`].
pub(crate) fn hold_registry() {
    HELD.set(Some(registry()));
}

pub(crate) fn release_registry() {
    HELD.set(None);
}

/// A child process begins without a device, and leaves its parent's to the parent.
pub(crate) fn forget_registry() {
    HELD.with_borrow_mut(|held| {
        let Some(registry) = held else { return };
        if let Some(device) = mem::take(&mut registry.current).upgrade() {
            // If it fails, the address is not free before this process ends.
            let _ = device.device.disown();
            // Dropping it might wait for its thread.
            mem::forget(device);
        }
        registry.address = None;
    });
}

impl Registry {
    fn device(&mut self) -> Result<Arc<DeviceBlock>> {
        if let Some(current) = self.current.upgrade() {
            return Ok(current);
        }
        let block = Arc::new(DeviceBlock::new(open(self.address)?));
        self.current = Arc::downgrade(&block);
        self.address = Some(block.device.address());
        Ok(block)
    }
}

/// Most programs exit without closing the device. Then this says what it has counted.
fn watch_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which glibc runs before it unloads it.
        let refused = unsafe { libc::atexit(report_at_exit) };
        if refused != 0 {
            tracing::warn!("no memory to watch for the exit: nothing will be said of a device that stays open");
        }
    });
}

extern "C" fn report_at_exit() {
    // Whoever holds the registry has its own reasons, and no more time than this.
    let Ok(registry) = REGISTRY.try_lock() else { return };
    let Some(open) = registry.current.upgrade() else { return };
    let _ = entry::guard(|| {
        open.birth.check()?;
        if tracing::enabled!(tracing::Level::INFO) {
            // The log is not to be used any more: its buffer is the thread's, and has gone. One write keeps the lines
            // of several processes apart.
            let (name, address) = (open.device.name(), open.device.address());
            let line = format!("uroce: {name} at {address}, left open: {}\n", open.device.counters());
            let _ = io::stderr().write_all(line.as_bytes());
        }
        Ok(())
    });
    // It stays as it is: threads that still run may use it.
    mem::forget(open);
}

/// Opens the device as the environment says, where it was before if it may choose.
fn open(before: Option<IpAddr>) -> Result<Device> {
    let settings = Settings::from_env().map_err(|error| {
        Settings::default().start_log();
        tracing::error!("{error}");
        Refusal::invalid("the environment asks for a device that cannot be")
    })?;
    settings.start_log();
    let open = |settings: &Settings| settings.device()?.build();
    let there = before
        .filter(|_| settings.address.is_none())
        .and_then(|address| open(&Settings { address: Some(address), ..settings.clone() }).ok());
    let device = there.map_or_else(|| open(&settings), Ok);
    Ok(device.inspect_err(|error| tracing::error!("{error}"))?)
}

/// A share in the device. The last one to go closes it, while nobody else opens it anew.
pub(crate) struct DeviceShare(ManuallyDrop<Arc<DeviceBlock>>);

impl DeviceShare {
    fn new(device: Arc<DeviceBlock>) -> Self {
        Self(ManuallyDrop::new(device))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }
}

impl Drop for DeviceShare {
    fn drop(&mut self) {
        let _registry = registry();
        // SAFETY: this is the only place that drops it, and it is dropped once.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// A device list: the device and the NULL behind it.
type List = [*const DeviceBlock; 2];

pub(crate) extern "C" fn get_device_list(num_devices: Option<&mut c_int>) -> *mut List {
    let mut unwanted = 0;
    let num_devices = num_devices.unwrap_or(&mut unwanted);
    // Some programs look at nothing else.
    *num_devices = 0;
    entry::pointer("ibv_get_device_list", || {
        fork::watch();
        watch_exit();
        let device = registry().device()?;
        *num_devices = 1;
        Ok(Box::into_raw(Box::new([Arc::into_raw(device), ptr::null()])))
    })
}

pub(crate) unsafe extern "C" fn free_device_list(list: *mut List) {
    entry::nothing("ibv_free_device_list", || {
        if list.is_null() {
            return Ok(());
        }
        // SAFETY: the program returns what get_device_list gave it.
        let list = unsafe { Box::from_raw(list) };
        // SAFETY: the list owns one reference, which get_device_list put into it.
        let device = unsafe { Arc::from_raw(list[0]) };
        match device.birth.check() {
            Ok(()) => drop(DeviceShare::new(device)),
            // The parent's thread cannot be stopped from here.
            Err(_) => mem::forget(device),
        }
        Ok(())
    });
}

pub(crate) extern "C" fn get_device_name(device: &DeviceBlock) -> *const c_char {
    device.verbs.device.name.as_ptr()
}

/// The kernel's index, which there is none of.
pub(crate) extern "C" fn get_device_index(_device: &DeviceBlock) -> c_int {
    -1
}

/// In wire order.
pub(crate) extern "C" fn get_device_guid(device: &DeviceBlock) -> u64 {
    device.device.guid().to_be()
}

pub(crate) unsafe extern "C" fn open_device(device: *const DeviceBlock) -> *mut ibv_context {
    entry::pointer("ibv_open_device", || {
        // SAFETY: the program passes a device of a list that it has not freed, or of a context that it has not closed.
        let listed = unsafe { &*device };
        let held = if listed.birth.check().is_ok() {
            // SAFETY: somebody holds a reference, as above, and this takes another.
            unsafe {
                Arc::increment_strong_count(device);
                Arc::from_raw(device)
            }
        } else {
            // The list is the parent's, as it may be, but a process opens a device of its own.
            registry().device()?
        };
        Ok(Context::open(device, DeviceShare::new(held))?.into_raw())
    })
}

pub(crate) extern "C" fn close_device(context: ContextPtr) -> c_int {
    entry::errno("ibv_close_device", || {
        context.get()?;
        // SAFETY: the program returns what open_device gave it, and does not use it again.
        drop(unsafe { context.into_handle() });
        Ok(())
    })
}
