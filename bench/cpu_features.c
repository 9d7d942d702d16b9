// Hides instructions of this processor from one program. A benchmark then shows the program's
// behaviour on an older processor. Needs x86-64 Linux and a processor that can fault CPUID
// ("cpuid_fault" in /proc/cpuinfo).
//
//   cc -O2 -shared -fPIC -o target/cpu_features.so bench/cpu_features.c
//   LD_PRELOAD=$PWD/target/cpu_features.so HIDE=vaes shoal run -c node.toml
//
// HIDE is a list of: vaes (VAES and VPCLMULQDQ), avx512, aes (AES and PCLMULQDQ). Without it, nothing
// is hidden. The instructions still work: a program that does not use CPUID is not affected.
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static uint32_t hidden_1_ecx, hidden_7_ebx, hidden_7_ecx, hidden_7_edx;
static struct sigaction before;

static void cpuid_allowed(unsigned long allowed) {
    if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, allowed) != 0) {
        static const char text[] = "cpu_features: this machine can't fault CPUID (no cpuid_fault in /proc/cpuinfo)\n";
        (void)!write(2, text, sizeof text - 1);
        _exit(70);
    }
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)regs[REG_RIP];
    // A CPUID instruction faults with SI_KERNEL. Any other fault is an error of the program.
    if (info->si_code != SI_KERNEL || code[0] != 0x0f || code[1] != 0xa2) {
        sigaction(number, &before, NULL);
        return;
    }
    uint32_t leaf = (uint32_t)regs[REG_RAX], part = (uint32_t)regs[REG_RCX];
    uint32_t a = leaf, b = 0, c = part, d = 0;
    cpuid_allowed(1);
    __asm__ volatile("cpuid" : "+a"(a), "+b"(b), "+c"(c), "+d"(d));
    cpuid_allowed(0);
    if (leaf == 1)
        c &= ~hidden_1_ecx;
    if (leaf == 7 && part == 0) {
        b &= ~hidden_7_ebx;
        c &= ~hidden_7_ecx;
        d &= ~hidden_7_edx;
    }
    regs[REG_RAX] = a, regs[REG_RBX] = b, regs[REG_RCX] = c, regs[REG_RDX] = d;
    regs[REG_RIP] += 2;
}

// Runs before the program, but after the dynamic loader has chosen its own routines.
__attribute__((constructor)) static void hide(void) {
    const char *what = getenv("HIDE");
    if (what == NULL || *what == 0)
        return;
    int vaes = strstr(what, "vaes") != NULL, avx512 = strstr(what, "avx512") != NULL;
    int aes = !strncmp(what, "aes", 3) || strstr(what, ",aes") != NULL;
    if (!vaes && !avx512 && !aes) {
        fprintf(stderr, "cpu_features: HIDE must be a comma-separated list of vaes, avx512, aes\n");
        _exit(70);
    }
    if (vaes)
        hidden_7_ecx |= 1u << 9 | 1u << 10;
    if (avx512) {
        // F, DQ, IFMA, CD, BW, VL; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; VP2INTERSECT, FP16.
        hidden_7_ebx |= 1u << 16 | 1u << 17 | 1u << 21 | 1u << 28 | 1u << 30 | 1u << 31;
        hidden_7_ecx |= 1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14;
        hidden_7_edx |= 1u << 8 | 1u << 23;
    }
    if (aes)
        hidden_1_ecx = 1u << 25 | 1u << 1;
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    sigaction(SIGSEGV, &action, &before);
    cpuid_allowed(0);
}
