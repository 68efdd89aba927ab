use super::*;
use crate::link::Train;
use std::{
    collections::HashMap,
    fs,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};
use uroce_protocol::{Instant, wire::ROCE_PORT};

fn settings(variables: &[(&str, &str)]) -> Result<Settings, SettingError> {
    let variables: HashMap<&str, &str> = variables.iter().copied().collect();
    Settings::from_variables(|name| variables.get(name).map(OsString::from))
}

/// A path that no other test has, and that nothing is at.
fn fresh_path(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let folder = env::temp_dir().join(format!("uroce-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir(&folder).unwrap();
    folder.join(name)
}

#[test]
fn no_variables_ask_for_nothing() {
    assert_eq!(settings(&[]), Ok(Settings::default()));
    assert_eq!(
        settings(&[("UROCE_ADDR", ""), ("UROCE_FAULT", ""), ("UROCE_CAPTURE", ""), ("UROCE_CONGESTION", "off")]),
        Ok(Settings::default())
    );
}

#[test]
fn every_variable_is_read_and_handed_on() {
    let given = [
        ("UROCE_ADDR", "192.0.2.1"),
        ("UROCE_LINK", "ether:eth7,mac=02:00:00:00:00:01"),
        ("UROCE_MTU", "1024"),
        ("UROCE_CAPTURE", "/tmp/a file.pcapng"),
        ("UROCE_FAULT", "drop 1%, rx delay 1ms read-response 3 qp 17"),
        ("UROCE_CONGESTION", "dcqcn rp_ai_rate=40"),
        ("UROCE_SEED", "17"),
        ("UROCE_PROFILE", "rxe"),
        ("UROCE_LOG", "debug"),
    ];
    let read = settings(&given).unwrap();
    assert_eq!(read.address, Some(IpAddr::from([192, 0, 2, 1])));
    assert_eq!(read.link.as_ref().map(ToString::to_string).as_deref(), Some("ether:eth7,mac=02:00:00:00:00:01"));
    assert_eq!(read.mtu, Some(Mtu::Mtu1024));
    assert_eq!(read.capture.as_deref(), Some(Path::new("/tmp/a file.pcapng")));
    assert_eq!(read.fault.as_ref().map(|spec| spec.rules.len()), Some(2));
    assert_eq!(read.congestion.as_ref().map(ToString::to_string).as_deref(), Some("dcqcn rp_ai_rate=40"));
    assert_eq!(read.seed, Some(17));
    assert_eq!(read.profile, Some(Profile::Rxe));
    assert_eq!(read.log, Some(LevelFilter::DEBUG));

    let handed_on: HashMap<_, _> = read.variables().into_iter().collect();
    assert_eq!(handed_on.len(), given.len());
    assert_eq!(Settings::from_variables(|name| handed_on[name].clone()), Ok(read));
}

#[test]
fn what_is_not_set_is_not_handed_on() {
    assert!(Settings::default().variables().iter().all(|(_, value)| value.is_none()));
}

#[test]
fn paths_are_handed_on_from_the_root() {
    let read = settings(&[("UROCE_CAPTURE", "x.pcapng"), ("UROCE_LINK", "dgram:a,/tmp/b,mtu=9000")]).unwrap();
    let handed_on: HashMap<_, _> = read.variables().into_iter().collect();
    let here = env::current_dir().unwrap();
    assert_eq!(handed_on["UROCE_CAPTURE"], Some(here.join("x.pcapng").into_os_string()));
    assert_eq!(handed_on["UROCE_LINK"], Some(format!("dgram:{}/a,/tmp/b,mtu=9000", here.display()).into()));
}

#[test]
fn a_wrong_value_is_named_with_its_variable_and_its_cure() {
    for (variable, value, cure) in [
        ("UROCE_ADDR", "localhost", "IPv4 or IPv6 address"),
        ("UROCE_LINK", "tcp", "a link is udp, shm, ether:IFACE or dgram:LOCAL,REMOTE"),
        ("UROCE_MTU", "1500", "256, 512, 1024, 2048 or 4096"),
        ("UROCE_FAULT", "dorp 1%", "dorp"),
        ("UROCE_CONGESTION", "cubic", "congestion control is dcqcn, timely or off"),
        ("UROCE_SEED", "-1", "a number from 0"),
        ("UROCE_PROFILE", "mlx5", "hardware or rxe"),
        ("UROCE_LOG", "loud", "off, error, warn, info, debug or trace"),
    ] {
        let error = settings(&[(variable, value)]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{variable}={value}: ")), "{error}");
        assert!(error.contains(cure), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}

#[test]
fn the_device_is_the_one_asked_for() {
    let asked = settings(&[("UROCE_ADDR", "127.77.0.1"), ("UROCE_MTU", "512"), ("UROCE_FAULT", "drop 1%")]).unwrap();
    let device = asked.device().unwrap().build().unwrap();
    assert_eq!(device.address(), IpAddr::from([127, 77, 0, 1]));
    assert_eq!(device.open().unwrap().query_port(1).unwrap().active_mtu, Mtu::Mtu512);
}

#[test]
fn an_address_that_is_not_here_is_refused() {
    let error = settings(&[("UROCE_ADDR", "192.0.2.1")]).unwrap().device().unwrap_err();
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
}

#[test]
fn labels_go_before_the_extension() {
    for (path, expected) in [("/a.b/bw.pcapng", "/a.b/bw.7.pcapng"), ("bw", "bw.7"), (".bw", ".bw.7")] {
        assert_eq!(with_label(Path::new(path), "7"), Path::new(expected));
    }
}

#[test]
fn the_first_takes_the_file_and_later_ones_insert_their_number() {
    let path = fresh_path("bw.pcapng");
    for (process, name) in [(7, "bw.pcapng"), (8, "bw.8.pcapng"), (8, "bw.8-2.pcapng")] {
        let (mut file, lock) = claim(&path, process).unwrap();
        file.write_all(b"a header").unwrap();
        drop(lock);
        assert_eq!(fs::metadata(path.with_file_name(name)).unwrap().len(), 8, "{name}");
    }
}

#[test]
fn an_emptied_file_is_taken_again() {
    let path = fresh_path("bw.pcapng");
    fs::write(&path, b"of another run").unwrap();
    settings(&[("UROCE_CAPTURE", path.to_str().unwrap())]).unwrap().begin_capture().unwrap();
    let (mut file, _lock) = claim(&path, 7).unwrap();
    file.write_all(b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn devices_of_one_process_share_its_capture_file() {
    let path = fresh_path("bw.pcapng");
    let asked = settings(&[("UROCE_CAPTURE", path.to_str().unwrap())]).unwrap();
    let mut sizes = Vec::new();
    for _ in 0..3 {
        drop(asked.device().unwrap().build().unwrap());
        sizes.push(fs::metadata(&path).unwrap().len());
    }
    assert!(sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_capture_is_complete_when_a_process_exits() {
    const CHILD: &str = "UROCE_TEST_CAPTURE_OF_A_PROCESS_THAT_EXITS";
    let capture = |path: &Path| settings(&[("UROCE_CAPTURE", path.to_str().unwrap())]).unwrap();
    if let Some(path) = env::var_os(CHILD) {
        let asked = capture(Path::new(&path));
        let link = asked.link(asked.wire().unwrap()).unwrap();
        let bytes = &[0x55; 64];
        let train = Train {
            destination: link.address(),
            source_port: ROCE_PORT,
            traffic_class: 0,
            hop_limit: None,
            segment_size: 64,
            bytes,
        };
        link.send(Instant::ZERO, &train).unwrap();
        // Nothing is dropped, nothing is flushed.
        process::exit(0);
    }
    let path = fresh_path("bw.pcapng");
    let own_name = "settings::tests::a_capture_is_complete_when_a_process_exits";
    let child = Command::new(env::current_exe().unwrap()).args(["--exact", own_name]).env(CHILD, &path).output();
    assert!(child.unwrap().status.success());
    let captured = fs::read(&path).unwrap();
    assert!(captured.windows(64).any(|window| window == [0x55; 64]), "{} bytes", captured.len());
}

#[test]
fn a_forked_child_writes_nothing_of_its_parents() {
    let path = fresh_path("bw.pcapng");
    let mut inherited = OwnFile { file: File::create(&path).unwrap(), process: process::id() + 1 };
    inherited.write_all(b"what the parent had not written yet").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}
