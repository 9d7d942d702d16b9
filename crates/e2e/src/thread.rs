//! Sets user and seccomp filters of one thread and of the processes that it starts. The kernel
//! keeps both per thread; libraries set them for the whole process.

#![allow(unsafe_code)]

use nix::errno::Errno;

/// Sets user and group of only this thread.
pub fn become_user(uid: u32, gid: u32) {
    // SAFETY: both calls take numbers by value and change nothing but this thread's identity.
    let done = unsafe {
        [
            libc::syscall(libc::SYS_setresgid, gid, gid, gid),
            libc::syscall(libc::SYS_setresuid, uid, uid, uid),
        ]
    };
    assert_eq!(done, [0, 0], "{}", Errno::last());
}

/// Makes the kernel answer a system call of this thread, and of processes that it starts, with the
/// error `answer` (0: success) without executing it. With `first`, only calls with that first
/// argument.
pub fn filter(call: libc::c_long, first: Option<i32>, answer: u16) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |at: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let unless = |k: u32, jf: u8| libc::sock_filter {
        jf,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k)
    };
    let end = |verdict: u32| statement(libc::BPF_RET | libc::BPF_K, verdict);
    // Number of the call, and lower half of its first argument (seccomp(2)).
    let (number, argument) = (0, if cfg!(target_endian = "little") { 16 } else { 20 });
    let mut program = vec![load(number), unless(call as u32, if first.is_some() { 3 } else { 1 })];
    if let Some(first) = first {
        program.extend([load(argument), unless(first as u32, 1)]);
    }
    program.push(end(libc::SECCOMP_RET_ERRNO | u32::from(answer)));
    program.push(end(libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, whose statements live until the call returns.
    let done =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(done, 0, "{}", Errno::last());
}
