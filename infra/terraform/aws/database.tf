resource "aws_security_group" "inside" {
  for_each = { database = 5432, files = 2049 }

  name_prefix = "${var.name}-${each.key}-"
  description = "${each.key}: only from the nodes of the cluster"
  vpc_id      = var.vpc_id
}

resource "aws_vpc_security_group_ingress_rule" "inside" {
  for_each = { database = 5432, files = 2049 }

  security_group_id            = aws_security_group.inside[each.key].id
  referenced_security_group_id = aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
  from_port                    = each.value
  to_port                      = each.value
  ip_protocol                  = "tcp"
}

resource "aws_db_subnet_group" "this" {
  name       = var.name
  subnet_ids = var.subnet_ids
}

resource "aws_db_parameter_group" "this" {
  name   = "${var.name}-17"
  family = "postgres17"

  parameter {
    name  = "rds.force_ssl"
    value = "1"
  }
}

resource "aws_db_instance" "this" {
  identifier                    = var.name
  engine                        = "postgres"
  engine_version                = "17"
  instance_class                = var.database_class
  allocated_storage             = 50
  max_allocated_storage         = 500
  storage_type                  = "gp3"
  storage_encrypted             = true
  kms_key_id                    = aws_kms_key.this.arn
  username                      = "postgres"
  manage_master_user_password   = true # stored in Secrets Manager, not in the state
  master_user_secret_kms_key_id = aws_kms_key.this.key_id
  db_subnet_group_name          = aws_db_subnet_group.this.name
  parameter_group_name          = aws_db_parameter_group.this.name
  vpc_security_group_ids        = [aws_security_group.inside["database"].id]
  publicly_accessible           = false
  backup_retention_period       = 14
  copy_tags_to_snapshot         = true
  deletion_protection           = true
  skip_final_snapshot           = false
  final_snapshot_identifier     = "${var.name}-last"
}

# File system with the clone of the project, mounted by many nodes.
resource "aws_efs_file_system" "project" {
  encrypted       = true
  kms_key_id      = aws_kms_key.this.arn
  throughput_mode = "elastic"
}

resource "aws_efs_mount_target" "project" {
  for_each = toset(var.subnet_ids)

  file_system_id  = aws_efs_file_system.project.id
  subnet_id       = each.key
  security_groups = [aws_security_group.inside["files"].id]
}
