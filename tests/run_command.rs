//! `uroce run`, `uroce env`, `uroce install`: what a program gets from them, and what they say when it cannot be.
#![cfg(feature = "cli")]

mod support;

use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};
use support::{launch::free_port, library::library};

/// A folder of this test's own, which goes when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("uroce-run-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        // Tests that become another user look into it.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A copy of a small program, to be spoilt.
    fn copy_of_true(&self, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
        let mut bytes = fs::read("/bin/true").unwrap();
        change(&mut bytes);
        let copy = self.path("program");
        fs::write(&copy, bytes).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        copy
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn uroce(arguments: &[&str]) -> Command {
    library();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uroce"));
    // What cargo sets for the test is not what a user has.
    command.args(arguments).env_remove("LD_LIBRARY_PATH");
    command
}

fn run(arguments: &[&str]) -> Output {
    uroce(arguments).output().unwrap()
}

/// What a shell prints under `uroce run`.
fn shell(options: &[&str], script: &str) -> String {
    let mut arguments = vec!["run"];
    arguments.extend(options);
    arguments.extend(["--", "sh", "-c", script]);
    let output = run(&arguments);
    assert!(output.status.success(), "{script}: {}", stderr(&output));
    stdout(&output).to_owned()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Whether a stock program is here; if not, says so.
fn is_here(program: &str, package: &str) -> bool {
    let found = env::split_paths(&env::var_os("PATH").unwrap()).any(|folder| folder.join(program).exists());
    if !found {
        eprintln!("left out: {program} is not installed (Debian package {package})");
    }
    found
}

#[test]
fn the_exit_status_is_the_programs() {
    for code in [0, 1, 2, 77, 126, 127, 255] {
        assert_eq!(run(&["run", "--", "sh", "-c", &format!("exit {code}")]).status.code(), Some(code));
    }
    let killed = run(&["run", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(libc::SIGTERM));
}

#[test]
fn the_program_takes_the_place_of_the_command() {
    for options in [&["run"][..], &["run", "--no-sysfs"]] {
        let mut child =
            uroce(options).args(["--", "sh", "-c", "echo $$; exec sleep 60"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), child.id().to_string());
        // A signal to the one is a signal to the other.
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}

#[test]
fn input_output_and_folder_stay() {
    let folder = Folder::new();
    fs::write(folder.path("input"), "a line\n").unwrap();
    let output = uroce(&["run", "--", "sh", "-c", "cat; pwd; echo problem >&2"])
        .current_dir(&folder.0)
        .stdin(fs::File::open(folder.path("input")).unwrap())
        .output()
        .unwrap();
    assert_eq!(stdout(&output), format!("a line\n{}\n", folder.0.display()));
    assert_eq!(stderr(&output), "problem\n");
}

#[test]
fn arguments_are_the_programs_once_it_is_named() {
    assert_eq!(stdout(&run(&["run", "echo", "--seed", "-v"])), "--seed -v\n");
    assert_eq!(stdout(&run(&["run", "--seed", "1", "--", "echo", "-n", "--", "x"])), "-- x");
}

#[test]
fn the_settings_reach_the_program() {
    let script = "env | grep ^UROCE_ | sort";
    let options = ["--addr", "127.77.1.1", "--mtu", "1024", "--fault", "drop 1%", "--seed", "7", "--profile", "rxe"];
    assert_eq!(
        shell(&options, script),
        "UROCE_ADDR=127.77.1.1\nUROCE_FAULT=drop 1%\nUROCE_MTU=1024\nUROCE_PROFILE=rxe\nUROCE_SEED=7\n"
    );
    assert_eq!(shell(&[], "env | grep -c ^UROCE_ || true"), "0\n");
    let output = uroce(&["run", "--mtu", "512", "--", "sh", "-c", script]).env("UROCE_MTU", "256").output().unwrap();
    assert_eq!(stdout(&output), "UROCE_MTU=512\n");
}

#[test]
fn the_loader_finds_every_name_of_the_library() {
    let script = "echo $LD_LIBRARY_PATH; echo $LD_PRELOAD; ls $LD_LIBRARY_PATH; readlink -f $LD_LIBRARY_PATH/*";
    let printed = shell(&[], script);
    let lines: Vec<&str> = printed.lines().collect();
    let library = fs::canonicalize(library()).unwrap();
    let library = library.to_str().unwrap();
    assert_eq!(lines[1], format!("{}/libibverbs.so.1", lines[0]));
    assert_eq!(lines[2..6], ["libibverbs.so", "libibverbs.so.1", "librdmacm.so", "librdmacm.so.1"]);
    assert_eq!(lines[6..], [library; 4]);
}

#[test]
fn what_the_loader_was_told_before_comes_second() {
    let output = uroce(&["run", "--", "sh", "-c", "echo $LD_LIBRARY_PATH; echo $LD_PRELOAD"])
        .envs([("LD_LIBRARY_PATH", "/nowhere/lib"), ("LD_PRELOAD", "libm.so.6")])
        .output()
        .unwrap();
    let lines: Vec<&str> = stdout(&output).lines().collect();
    assert!(lines[0].ends_with(":/nowhere/lib"), "{lines:?}");
    assert!(lines[1].ends_with("/libibverbs.so.1:libm.so.6"), "{lines:?}");
    // Within `uroce run` there is nothing to add.
    let again = format!("{} run -- sh -c 'echo $LD_PRELOAD'", env!("CARGO_BIN_EXE_uroce"));
    assert_eq!(shell(&[], &again), shell(&[], "echo $LD_PRELOAD"));
}

#[test]
fn links_are_made_where_there_is_room_for_them() {
    let folder = Folder::new();
    let with_space = folder.path("a b");
    fs::create_dir(&with_space).unwrap();
    let library_path = |runtime: &Path, cache: &Path| {
        let output = uroce(&["run", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"])
            .envs([("XDG_RUNTIME_DIR", runtime), ("XDG_CACHE_HOME", cache), ("TMPDIR", &folder.0)])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).trim().to_owned()
    };
    let (runtime, cache) = (folder.path("runtime"), folder.path("cache"));
    assert!(library_path(&runtime, &cache).starts_with(runtime.to_str().unwrap()));
    // The loader would take this path apart.
    assert!(library_path(&with_space, &cache).starts_with(cache.to_str().unwrap()));
    // Others could put something else there.
    fs::create_dir(folder.path("open")).unwrap();
    fs::set_permissions(folder.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(library_path(&folder.path("open"), &with_space).starts_with(folder.path("uroce-").to_str().unwrap()));
}

#[test]
fn what_cannot_be_run_is_explained_in_one_line() {
    let folder = Folder::new();
    fs::write(folder.path("text"), "no program").unwrap();
    let explained = |program: &Path, status: i32, sentence: &str| {
        let output = run(&["run", "--", program.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(stderr(&output).contains(sentence), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    };
    explained(Path::new("no-such-program"), 127, "there is no program no-such-program");
    explained(Path::new("/nowhere/program"), 127, "/nowhere/program");
    explained(&folder.path("text"), 126, "Permission denied");
    explained(&folder.0, 126, "Permission denied");

    let setuid = folder.copy_of_true(|_| {});
    // Another user's, if this one may give files away; else one that any system has.
    let setuid = if std::os::unix::fs::chown(&setuid, Some(65534), None).is_ok() {
        fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).unwrap();
        setuid
    } else {
        PathBuf::from("/bin/su")
    };
    explained(&setuid, 126, "is setuid");
}

#[test]
fn programs_that_load_no_libraries_are_told_of_and_run() {
    let folder = Folder::new();
    // Without its segment PT_INTERP a program is a static one. This one does not survive it, which is not the point.
    let interpreted = folder.copy_of_true(|bytes| {
        let count = usize::from(bytes[56]);
        let interp = (0..count).map(|index| 64 + index * 56).find(|&at| bytes[at] == 3).unwrap();
        bytes[interp] = 0;
    });
    let output = run(&["run", "--", interpreted.to_str().unwrap()]);
    assert!(stderr(&output).contains("statically linked"), "{}", stderr(&output));

    let musl = folder.copy_of_true(|bytes| {
        let loader = bytes.windows(10).position(|window| window == b"/ld-linux-").unwrap();
        bytes[loader..loader + 10].copy_from_slice(b"/ld-musl-x");
    });
    let output = run(&["run", "--", musl.to_str().unwrap()]);
    assert!(stderr(&output).contains("linked with musl"), "{}", stderr(&output));

    let foreign = folder.copy_of_true(|bytes| bytes[18] ^= 0x55);
    let output = run(&["run", "--", foreign.to_str().unwrap()]);
    assert!(stderr(&output).contains("another processor"), "{}", stderr(&output));

    let script = folder.path("script");
    fs::write(&script, format!("#! {} -x\n", foreign.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let output = run(&["run", "--", script.to_str().unwrap()]);
    assert!(stderr(&output).contains("which runs"), "{}", stderr(&output));

    fs::write(&script, "#!/bin/sh\nexit 5\n").unwrap();
    let output = run(&["run", "--", script.to_str().unwrap()]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(5), ""));
}

#[test]
fn what_uroce_lacks_is_said_before_the_program_starts() {
    let refused = |variable: &str, value: &str, options: &[&str], sentence: &str| {
        let mut command = uroce(&["run"]);
        command.args(options).args(["--", "echo", "started"]).env(variable, value);
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{}", stderr(&output));
        assert!(stderr(&output).contains(sentence), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    };
    refused("UROCE_LIBRARY", "/nowhere/lib.so", &[], "cargo build -p uroce-rdma-core");
    refused("UROCE_FAULT", "dorp 1%", &[], "UROCE_FAULT=dorp 1%");
    refused("UROCE_ADDR", "192.0.2.1", &[], "192.0.2.1");
    refused("UROCE_X", "", &["--capture", "/nowhere/x.pcapng"], "/nowhere/x.pcapng");
}

#[test]
fn processes_of_one_run_have_addresses_and_captures_of_their_own() {
    if !is_here("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let folder = Folder::new();
    let capture = folder.path("both.pcapng");
    shell(&["--capture", capture.to_str().unwrap()], &two_sides("ibv_rc_pingpong"));
    let captures: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(captures.len() >= 2 && captures.contains(&capture), "{captures:?}");
    let packets = captures.iter().map(|file| {
        let shown = run(&["pcap", "show", file.to_str().unwrap()]);
        assert!(shown.status.success(), "{}: {}", file.display(), stderr(&shown));
        stdout(&shown).lines().count()
    });
    let busy = packets.filter(|&packets| packets >= 100).count();
    assert_eq!(busy, 2, "both sides see 50 messages of four kilobytes, there and back");

    // The next run begins anew.
    shell(&["--capture", capture.to_str().unwrap()], "true");
    assert_eq!(fs::metadata(&capture).unwrap().len(), 0);
}

#[test]
fn what_a_device_has_counted_is_told() {
    // The first closes the device, the second just exits.
    for (program, package, said) in [
        ("ibv_rc_pingpong", "ibverbs-utils", "device closed: sent_pkts="),
        ("ib_write_bw", "perftest", "left open: sent_pkts="),
    ] {
        if !is_here(program, package) {
            continue;
        }
        let output = run(&["run", "-v", "--fault", "drop 1%", "--seed", "1", "--", "sh", "-c", &two_sides(program)]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).matches(said).count() >= 2, "{}", stderr(&output));
    }
}

#[test]
fn programs_of_one_machine_share_memory() {
    for program in ["ibv_rc_pingpong", "ib_write_lat"] {
        let package = if program.starts_with("ibv_") { "ibverbs-utils" } else { "perftest" };
        if !is_here(program, package) {
            continue;
        }
        let output = run(&["run", "-vv", "--link", "shm", "--", "sh", "-c", &two_sides(program)]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output).matches("a short way is open").count(), 2, "{}", stderr(&output));
    }
}

/// A shell script that runs both sides of a program of perftest's kind.
fn two_sides(program: &str) -> String {
    let port = free_port();
    let index = if program.starts_with("ibv_") { "-g" } else { "-x" };
    let side = format!("{program} {index} 0 -p {port} -n 50");
    format!(
        "{side} >&2 & server=$!
        until {side} 127.0.0.1 >&2; do kill -0 $server || exit 1; sleep 0.1; done
        wait $server"
    )
}

#[test]
fn a_library_at_work_reads_the_settings() {
    if !is_here("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let page = shell(&["--addr", "127.77.1.2", "--mtu", "1024"], "ibv_devinfo -v");
    for line in ["hca_id:\turoce0", "PORT_ACTIVE (4)", "1024 (3)", "Ethernet", "::ffff:127.77.1.2, RoCE v2"] {
        assert!(page.contains(line), "{line}: {page}");
    }
    // What it logs is about the program's device, not about the look that the command had.
    let output = run(&["run", "-v", "--addr", "127.77.1.4", "--", "ibv_devinfo"]);
    assert_eq!(stderr(&output).matches("device open").count(), 1, "{}", stderr(&output));
    assert_eq!(stderr(&output).matches("device closed").count(), 1, "{}", stderr(&output));
}

/// What a view shows: the same whoever makes it.
const LOOK: &str = "
    cd /sys/class/infiniband/uroce0
    cat ports/1/state ports/1/gids/0 ports/1/gid_attrs/types/0 node_type
    ls device/net device/infiniband
    cat /sys/class/infiniband_verbs/uverbs0/ibdev
    test -c /dev/infiniband/uverbs0 && test -r /dev/infiniband/uverbs0 && test -w /dev/infiniband/uverbs0
    test -d /sys/class/net/lo && test \"$(cat /sys/class/net/lo/address)\" = 00:00:00:00:00:00
    echo discarded > /dev/null
    script -qec true /dev/null
    readlink -f device";
const SEEN: &str = "\
4: ACTIVE
0000:0000:0000:0000:0000:ffff:7f4d:0103
RoCE v2
1: CA
device/infiniband:
uroce0

device/net:
lo
uroce0
/sys/devices/virtual/uroce/uroce0
";

/// Why there is no view, if there is none.
fn refusal(output: &Output) -> Option<&str> {
    stderr(output).split_once("the device is not shown in /sys and /dev: ").map(|(_, reason)| reason.trim())
}

#[test]
fn the_device_is_in_the_file_system() {
    let output = run(&["run", "-v", "--addr", "127.77.1.3", "--", "sh", "-ec", LOOK]);
    match refusal(&output) {
        None => assert_eq!(stdout(&output), SEEN, "{}", stderr(&output)),
        Some(reason) => eprintln!("left out: this machine allows no namespaces ({reason})"),
    }
    // Nobody else sees it, and it can be done without.
    assert!(!Path::new("/sys/devices/virtual/uroce").exists());
    shell(&["--no-sysfs"], "test ! -e /sys/devices/virtual/uroce");
}

#[test]
fn a_user_stays_who_he_is() {
    // Root becomes somebody else for it.
    // SAFETY: it only tells a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    let folder = Folder::new();
    let (command, library) = (folder.path("uroce"), folder.path("library.so"));
    fs::copy(env!("CARGO_BIN_EXE_uroce"), &command).unwrap();
    fs::copy(support::library::library(), &library).unwrap();
    let mut program = Command::new(if is_root { "setpriv" } else { "env" });
    if is_root {
        program.args(["--reuid", "4711", "--regid", "4712", "--groups", "4713"]);
    }
    let script = format!("id -u; id -g; grep Cap /proc/self/status; {LOOK}");
    let output = program
        .arg(&command)
        .args(["run", "-v", "--addr", "127.77.1.3", "--", "sh", "-ec", &script])
        .env("UROCE_LIBRARY", &library)
        .env("TMPDIR", "/tmp")
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    if let Some(reason) = refusal(&output) {
        eprintln!("left out: this machine allows no namespaces ({reason})");
        return;
    }
    assert!(stdout(&output).ends_with(SEEN), "{}: {}", stdout(&output), stderr(&output));
    if is_root {
        assert!(stdout(&output).starts_with("4711\n4712\n"), "{}", stdout(&output));
        assert!(stdout(&output).contains("CapEff:\t0000000000000000"), "{}", stdout(&output));
        let links = format!("/tmp/uroce-{}", 4711);
        assert_eq!(fs::metadata(&links).unwrap().uid(), 4711);
        fs::remove_dir_all(links).unwrap();
    }
}

#[test]
fn without_namespaces_the_program_runs_all_the_same() {
    // A user namespace in which no mount namespace may be made.
    let script = format!(
        "echo 0 > /proc/sys/user/max_mnt_namespaces && exec {} run -v -- sh -c 'test ! -e /sys/devices/virtual/uroce'",
        env!("CARGO_BIN_EXE_uroce")
    );
    library();
    let output = Command::new("unshare").args(["--user", "--map-root-user", "sh", "-c", &script]).output().unwrap();
    if stderr(&output).contains("unshare:") || stderr(&output).contains("cannot create") {
        eprintln!("left out: this machine allows no namespaces ({})", stderr(&output).trim());
        return;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(refusal(&output).map(|reason| reason.lines().count()), Some(1), "{}", stderr(&output));
}

#[test]
fn no_view_is_worth_privileges() {
    // SAFETY: it only tells a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("left out: it takes root");
        return;
    }
    library();
    let script = "test ! -e /sys/devices/virtual/uroce && chown 4711 \"$0\"";
    let folder = Folder::new();
    let file = folder.copy_of_true(|_| {});
    let output = Command::new("setpriv")
        .args(["--bounding-set=-sys_admin", env!("CARGO_BIN_EXE_uroce"), "run", "-v", "--", "sh", "-ec", script])
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(refusal(&output).is_some_and(|reason| reason.contains("privileges")), "{}", stderr(&output));
    assert_eq!(fs::metadata(&file).unwrap().uid(), 4711);
}

#[test]
fn env_says_to_a_shell_what_run_gives_to_a_program() {
    let uroce_command = env!("CARGO_BIN_EXE_uroce");
    let evaluated = |script: &str| {
        let output = Command::new("sh").args(["-c", script]).env_remove("LD_LIBRARY_PATH").output().unwrap();
        assert!(output.status.success(), "{script}: {}", stderr(&output));
        stdout(&output).to_owned()
    };
    let show = "env | grep -E '^(LD_|UROCE_)' | sort";
    let options = "--fault 'drop 1%, rx delay 1ms 5%' --seed 7";
    library();
    assert_eq!(
        evaluated(&format!("eval \"$({uroce_command} env {options})\"; {show}")),
        evaluated(&format!("{uroce_command} run {options} -- sh -c \"{show}\"")),
    );
}

#[test]
fn install_makes_a_prefix_and_uninstall_takes_it_away() {
    let folder = Folder::new();
    let prefix = folder.path("made/prefix");
    let own = prefix.join("lib/own");
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    fs::write(&own, "of somebody else").unwrap();
    let installed = |names: &[&str]| names.iter().all(|name| prefix.join(name).exists());

    for _ in ["the first", "over the first"] {
        let output = run(&["install", "--prefix", prefix.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(installed(&["bin/uroce", "lib/uroce/libibverbs.so.1", "lib/uroce/librdmacm.so.1"]));
        let configuration = fs::read_to_string(prefix.join("etc/ld.so.conf.d/uroce.conf")).unwrap();
        assert_eq!(Path::new(configuration.trim()), prefix.join("lib/uroce"));
    }
    // The installed command uses the installed library.
    let output = Command::new(prefix.join("bin/uroce"))
        .args(["run", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"])
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    assert_eq!(Path::new(stdout(&output).trim()), prefix.join("lib/uroce"), "{}", stderr(&output));

    fs::write(prefix.join("bin/other"), "put there later").unwrap();
    let output = run(&["uninstall", "--prefix", prefix.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let left: Vec<_> = walk(&folder.0);
    assert_eq!(
        left,
        ["made", "made/prefix", "made/prefix/bin", "made/prefix/bin/other", "made/prefix/lib", "made/prefix/lib/own"]
    );

    let output = run(&["uninstall", "--prefix", prefix.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("is not installed in"), "{}", stderr(&output));
}

/// Every path below a folder, sorted.
fn walk(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.strip_prefix(folder).unwrap().display().to_string());
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort();
    found
}
