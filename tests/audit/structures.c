// Structures that are laid out for cache lines of 64 bytes, and others.

typedef unsigned long u64;

struct plain { u64 a; char name[64]; };

struct aligned { u64 a; } __attribute__((aligned(64)));
struct aligned_member { u64 a; _Alignas(64) u64 b; u64 c; };
struct of_aligned { u64 a; struct aligned b; };
struct array_of_aligned { u64 a; const struct aligned b[3]; };
typedef u64 line __attribute__((aligned(64)));
struct by_typedef { u64 a; line b; };

struct padded { u64 a; char pad[64]; u64 b; };
struct filled { u64 a; char pad0[56]; u64 b, c; unsigned char m_pad1[48]; };
struct filled_behind { u64 a[9]; int b; char Padding[60]; u64 c; };
union slot { u64 a; char pad[64]; };
typedef struct { u64 a, b; char pad[48]; } by_name;

// Laid out for lines of 128 bytes.
struct longer { u64 a; _Alignas(128) u64 b; char pad[64]; };
struct longer_in_short_hole { char a[80]; _Alignas(128) u64 b; };
struct padded_longer { u64 a; char pad[120]; u64 b; };
struct padded_twice { u64 a; char pad0[56]; char pad1[64]; u64 b; };

// Aligned or padded for other reasons.
struct aligned_32 { u64 a; _Alignas(32) u64 b; };
typedef float vector __attribute__((vector_size(64)));
struct with_vector { u64 a; vector b; };
struct short_padding { u64 a[7]; char pad[8]; };
struct reserved { u64 a; char __pad[56]; };
struct words { u64 a[6]; unsigned pad[4]; };
struct bits { u64 a : 3, b : 61; u64 c; };
struct free_line { char a[64]; char pad[64]; u64 b; } __attribute__((aligned(64)));
struct flexible { u64 a; char pad[]; };

u64 f(u64 a) { return a + 1; }
