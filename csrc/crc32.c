#include "rocketstore.h"
#include <string.h>
uint32_t rs_crc32(uint32_t crc, const uint8_t *p, size_t size){ crc=~crc; while(size--){crc^=*p++; for(int k=0;k<8;k++) crc=(crc>>1)^(0xEDB88320u&-(crc&1));} return ~crc;}
static const char*const K[]={"bit",0};
const char *const *rs_crc32_kernels(void){return K;}
rs_crc32_fn rs_crc32_by_name(const char*n){return strcmp(n,"bit")?0:rs_crc32;}
const char *rs_crc32_kernel_name(void){return "bit";}
int rs_crc32_select(const char*n){return strcmp(n,"bit")?-1:0;}
