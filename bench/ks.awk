# Tests if two samples have one distribution (two-sample test of Kolmogorov and Smirnov).
# Input: lines "0 value" and "1 value", sorted by value (sort -k2,2g). Output: "D p n0 n1". D is the
# largest difference; p is the asymptotic probability of this or a larger one (Press et al.,
# Numerical Recipes, 14.3).
{ class[NR] = $1; value[NR] = $2; n[$1]++ }
END {
    if (!n[0] || !n[1]) { print "a sample is empty"; exit 1 }
    for (i = 1; i <= NR; i++) {
        seen[class[i]]++
        if (i < NR && value[i + 1] == value[i]) continue
        d = seen[0] / n[0] - seen[1] / n[1]
        if (d < 0) d = -d
        if (d > most) most = d
    }
    root = sqrt(n[0] * n[1] / (n[0] + n[1]))
    x = (root + 0.12 + 0.11 / root) * most
    p = 0; sign = 1
    for (k = 1; k <= 100; k++) { p += sign * 2 * exp(-2 * k * k * x * x); sign = -sign }
    if (x < 0.2 || p > 1) p = 1
    if (p < 0) p = 0
    printf "%.5f %.5f %d %d\n", most, p, n[0], n[1]
}
