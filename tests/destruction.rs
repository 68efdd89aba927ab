//! The end of objects: by the verbs' rules when called by name, silently when the last handle goes, and without
//! leaving anything behind.

mod support;

use std::{collections::BTreeSet, fs};
use support::{ALL, Side, connect, device, pair};
use uroce::verbs::{QpCapabilities, QpInitAttributes, SendOperation};

#[test]
fn what_is_in_use_is_busy() {
    let context = device().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(16, 0, Some(&channel)).unwrap();
    let mr = pd.reg_mr(64, ALL).unwrap();
    assert_eq!(pd.dealloc().unwrap_err().errno(), libc::EBUSY);
    mr.dereg().unwrap();
    let qp = pd.create_qp(&QpInitAttributes::new(&cq)).unwrap();
    assert_eq!(pd.dealloc().unwrap_err().errno(), libc::EBUSY);
    assert_eq!(cq.destroy().unwrap_err().errno(), libc::EBUSY);
    assert_eq!(channel.destroy().unwrap_err().errno(), libc::EBUSY);
    qp.destroy().unwrap();
    pd.dealloc().unwrap();
    cq.destroy().unwrap();
    channel.destroy().unwrap();
}

#[test]
fn what_is_gone_is_refused_through_every_clone() {
    let side = Side::new(&device(), QpCapabilities::default(), 64);
    let (pd, cq, qp) = (side.pd.clone(), side.cq.clone(), side.qp.clone());
    side.qp.destroy().unwrap();
    side.mr.dereg().unwrap();
    side.pd.dealloc().unwrap();
    side.cq.destroy().unwrap();
    assert_eq!(pd.reg_mr(64, ALL).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(pd.create_qp(&QpInitAttributes::new(&cq)).map(|_| ()).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(cq.poll(&mut []).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(qp.connect(&side.connection_to(&side)).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(qp.destroy().unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn objects_of_different_contexts_do_not_mix() {
    let device = device();
    let (one, other) = (device.open().unwrap(), device.open().unwrap());
    let cq = other.create_cq(16, 0, None).unwrap();
    let pd = one.alloc_pd().unwrap();
    assert_eq!(pd.create_qp(&QpInitAttributes::new(&cq)).map(|_| ()).unwrap_err().errno(), libc::EINVAL);
    let channel = one.create_comp_channel().unwrap();
    assert_eq!(other.create_cq(16, 0, Some(&channel)).map(|_| ()).unwrap_err().errno(), libc::EINVAL);
    let mr = pd.reg_mr(64, ALL).unwrap();
    assert_eq!(mr.rereg(Some(&other.alloc_pd().unwrap()), None).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn a_peer_that_goes_away_leaves_a_clean_error() {
    let (a, b) = pair(4096);
    let (address, rkey) = (b.mr.address(), b.mr.rkey());
    drop(b);
    let mut connection = a.connection_to(&a);
    connection.timeout = 1;
    connection.retry_cnt = 1;
    let lonely = a.pd.create_qp(&QpInitAttributes::new(&a.cq)).unwrap();
    connection.qpn = uroce::verbs::Qpn::new(2);
    lonely.connect(&connection).unwrap();
    let list = [a.mr.sge(0, 8)];
    lonely.post_send(&[support::send(9, SendOperation::Write { address, rkey }, &list)]).unwrap();
    assert_eq!(a.completion().status, uroce::verbs::WcStatus::RetryExceeded);
}

/// One test of its own, because it looks at everything the process has.
#[test]
fn a_hundred_devices_leave_nothing_behind() {
    // In a process of its own, so that the other tests do not disturb.
    if std::env::var_os("UROCE_TEST_ALONE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_hundred_devices_leave_nothing_behind", "--test-threads=1"])
            .env("UROCE_TEST_ALONE", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let descriptors = || {
        let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| !link.to_string_lossy().starts_with("/proc")).collect::<BTreeSet<_>>()
    };
    let before = (threads(), descriptors());
    for _ in 0..100 {
        let device = device();
        let a = Side::new(&device, QpCapabilities::default(), 4096);
        let b = Side::new(&device, QpCapabilities::default(), 4096);
        connect(&a, &b);
        a.post(1, SendOperation::Write { address: b.mr.address(), rkey: b.mr.rkey() }, a.mr.sge(0, 64));
        assert!(a.completion().is_success());
    }
    assert_eq!((threads(), descriptors()), before);
}
